"""Nodules that the program makes itself, as cubes or inside whole scans."""
