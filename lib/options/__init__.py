"""Options: dataclasses with checked fields, in and out of plain data and YAML, under registered names."""
