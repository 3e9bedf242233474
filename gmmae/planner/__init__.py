"""`gmmae plan`: measures a workload on one device and predicts every scaling strategy on many."""
