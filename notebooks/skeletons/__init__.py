"""Skeletons to copy: each is a whole thing of its kind, small, and used by a test as it stands.

| file | copy it for | then |
|---|---|---|
| `server_rule.py` | what becomes of a gradient at the servers | `lockstep train ctr-synthetic mine.py virtual` |
| `replica_rule.py` | who averages with whom, and how | `lockstep train ctr-synthetic mine.py virtual` |
| `workload.py` | a model, its data and its metric | `lockstep train mine.py sync virtual` |
| `slowdown.py` | how a cluster's workers are slowed down | `lib.VirtualCluster(workers=8, slowdown=Mine())` |
| `data_set.py` | a raw click log in a format of its own | a line in `data_prep/datasets.py`, `python -m data_prep mine FOLDER` |
| `page.ipynb` | a notebook with its runs, table and figure | copy it to `notebooks/`, `lockstep run NAME` |
"""
