"""What travels between workers and servers in place of int64 ids and float32 rows."""
