"""Traces of real clusters: read strictly, and fitted by a slowdown that `lib`'s clusters take.

python -m data_prep trace FILE                      how its workers were slowed down, as YAML
python -m data_prep trace FILE slowdown.yaml        the same into a file
lockstep train ctr-synthetic gba virtual -o slowdown=slowdown.yaml
"""
