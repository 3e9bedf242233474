"""Nodules of LIDC-IDRI, cut from its DICOM series by the outlines that its readers drew."""
