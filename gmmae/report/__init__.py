"""From a sweep's files to one page: tables, figures, and the answer in words."""
