"""Memory that the runtime and kernels both write: jobs of shared products, packed sparse matrices. Loads no compiler.

A job (see `shared`) is a block of words of 8 bytes through which threads share a product.

A packed sparse matrix (see `sparse`) has the words `COUNT`, its number of entries; `CAPACITY`, the number there is
memory for; `MATRIX`, the address of the matrix as stored; `ENTRIES`, the address of the values; from `STARTS` on the
first entry of every column, and behind these the rows of the entries, 4 bytes each, and the values.
"""

LINE = 8  # words of 8 bytes: a cache line, so that threads do not write into each other's lines
PRODUCT, STOP, THREADS = range(3)  # number of the latest product, whether helpers shall end, number of threads
ARGUMENTS = LINE  # of the latest product, a line
PARTS = 2 * LINE  # one line per thread: the products for which the thread's part was last begun and last finished
BEGUN, FINISHED = 0, 1


def words(threads: int) -> int:
    """Words of a job."""
    return PARTS + LINE * threads


HEADS = 8  # bits of a product's options before the number of heads, see `heads`

COUNT, CAPACITY, MATRIX, ENTRIES, STARTS = range(5)


def sparse_words(columns: int, capacity: int, number: int) -> int:
    """Words of a packed sparse matrix of numbers with so many bytes."""
    return STARTS + columns + 2 + capacity // 2 + -(-capacity * number // 8)
