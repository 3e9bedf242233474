"""Many small workloads in one process. They set the constants of `gmmae plan`, each judged by those of the others."""
