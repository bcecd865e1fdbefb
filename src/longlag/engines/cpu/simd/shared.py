"""One sequence on several threads: the threads share the recurrent product of every step.

One thread runs the time loop. Its `multiply` publishes the product as a job and computes its own part of the columns;
helper threads wait for jobs and compute the other parts. The first thread computes the parts that no helper has begun,
because the processor is busy, and waits only for parts in progress. Every thread sums a column in the same order, so
results do not depend on which thread computes a part. The job lies in front of the packed matrix; see `job`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types

from longlag.engines import _private
from longlag.engines.cpu.cache.compile import PLAIN, address, call, flat
from longlag.engines.cpu.simd.functions import intrinsic
from longlag.engines.cpu.simd.job import ARGUMENTS, BEGUN, FINISHED, LINE, PARTS, PRODUCT, STOP, THREADS
from longlag.engines.cpu.simd.product import multiply, pack_into, width
from longlag.engines.cpu.simd.sparse import pack_entries


@intrinsic
def _read(typing, words, index):
    """A word that another thread publishes; earlier writes of that thread are then visible (acquire)."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(_place(context, builder, signature, arguments), "acquire", 8)

    return types.intp(words, types.intp), codegen


@intrinsic
def _publish(typing, words, index, value):
    """Write a word that other threads read."""

    def codegen(context, builder, signature, arguments):
        builder.store_atomic(arguments[2], _place(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.intp), codegen


@intrinsic
def _claim(typing, words, index, product):
    """Whether this thread is the first to begin a part of the product: its word becomes ``product``."""

    def codegen(context, builder, signature, arguments):
        before = builder.sub(arguments[2], arguments[2].type(1))
        place = _place(context, builder, signature, arguments)
        return builder.extract_value(builder.cmpxchg(place, before, arguments[2], "acq_rel", "acquire"), 1)

    return types.boolean(words, types.intp, types.intp), codegen


def _place(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    data = _private.array_data(context, builder, signature.args[0], arguments[0])
    return builder.gep(data, [arguments[1]])


@njit(**PLAIN)
def _packed(job):
    """The address of the matrix behind a job."""
    return address(job, PARTS + LINE * job[THREADS])


@njit(**PLAIN)
def _compute(job, P, part):
    """One part of the columns: whole panels; the last part also has the remaining columns."""
    A, K, C, N = job[ARGUMENTS], job[ARGUMENTS + 1], job[ARGUMENTS + 2], job[ARGUMENTS + 3]
    options, edge, threads, w = job[ARGUMENTS + 4], job[ARGUMENTS + 5], job[THREADS], width(P)
    first, last = N // w * part // threads * w, N // w * (part + 1) // threads * w
    if part == threads - 1:
        last = N
    result, own = flat(C, P.dtype), flat(address(P, first * K), P.dtype)
    add, single = options & 1 != 0, options & 2 != 0
    multiply(flat(A, P.dtype), 0, K, 1, K, own, result, first, last - first, add, flat(edge, P.dtype), single)


def multiply_shared(number: Any, compute: Any = _compute) -> Any:
    def kernel(A, distance, M, K, P, C, N, options, edge):
        """C (+)= A·P on the threads of the job at ``P``; with several threads A has one row."""
        job = flat(P, np.int64)
        packed = flat(_packed(job), number)
        if job[THREADS] == 1:  # the product of W: one thread, several rows
            rows, add, single = flat(A, number), options & 1 != 0, options & 2 != 0
            multiply(rows, 0, distance, M, K, packed, flat(C, number), 0, N, add, flat(edge, number), single)
            return
        product = job[PRODUCT] + 1
        job[ARGUMENTS], job[ARGUMENTS + 1], job[ARGUMENTS + 2], job[ARGUMENTS + 3] = A, K, C, N
        job[ARGUMENTS + 4], job[ARGUMENTS + 5] = options, edge
        _publish(job, PRODUCT, product)
        compute(job, packed, 0)
        for part in range(1, job[THREADS]):
            if _claim(job, PARTS + LINE * part + BEGUN, product):
                compute(job, packed, part)
            else:
                while _read(job, PARTS + LINE * part + FINISHED) != product:
                    pass

    return kernel


def pack_shared(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        """Pack a matrix behind its job."""
        pack_into(flat(_packed(flat(P, np.int64)), number), flat(U, number), rows, columns, transposed != 0)

    return kernel


def pack_sparse_shared(number: Any) -> Any:
    def kernel(P, U, rows, columns, transposed):
        """Pack the entries of a sparse matrix behind its job."""
        pack_entries(flat(_packed(flat(P, np.int64)), np.int64), flat(U, number), rows, columns, transposed != 0)

    return kernel


def run_shared(number: Any, compute: Any = _compute) -> Any:
    def kernel(words, first, last, thread):
        """Thread 0 calls the kernel words[0] on the table words[1]; the others help with the job words[2]."""
        job = flat(words[2], np.int64)
        if thread == 0:
            call(words[0], (words[1], 0, 1, 0))
            _publish(job, STOP, 1)
            return
        packed, part, done = flat(_packed(job), number), PARTS + LINE * thread, 0
        while _read(job, STOP) == 0:
            product = _read(job, PRODUCT)
            if product != done:
                if _claim(job, part + BEGUN, product):
                    compute(job, packed, thread)
                    _publish(job, part + FINISHED, product)
                done = product

    return kernel
