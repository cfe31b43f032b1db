"""Where parameters live: dense ones as a flat vector, sparse ones as rows of a hashed table.

Kernels are compiled into each other across files, and numba's cache notices a change of a kernel's own file alone. So the
folder of the cache is named after the content of all files that have some: an edited or updated one is never served by an old
kernel.
"""

from hashlib import blake2b
from pathlib import Path

import numba

_HERE = Path(__file__).parent
_FILES = {str(path.relative_to(_HERE)).encode(): path.read_bytes() for path in sorted(_HERE.rglob("*.py"))}
_CONTENT = b"".join(name + content for name, content in _FILES.items() if b"import njit" in content)
numba.config.CACHE_DIR = str(
    Path(numba.config.CACHE_DIR or _HERE / "__pycache__") / f"kernels-{blake2b(_CONTENT, digest_size=8).hexdigest()}"
)
