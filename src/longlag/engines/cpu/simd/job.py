"""Layout of the job through which threads share a product; see `longlag.engines.cpu.simd.shared`. Loads no compiler."""

LINE = 8  # words of 8 bytes: a cache line, so that threads do not write into each other's lines
PRODUCT, STOP, THREADS = range(3)  # number of the latest product, whether helpers shall end, number of threads
ARGUMENTS = LINE  # of the latest product, a line
PARTS = 2 * LINE  # one line per thread: the products for which the thread's part was last begun and last finished
BEGUN, FINISHED = 0, 1


def words(threads: int) -> int:
    """Words of a job."""
    return PARTS + LINE * threads
