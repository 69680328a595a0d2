"""Triton's interpreter, so that an engine's Triton kernels run on a CPU. Call prepare() before the engine is imported.

Five things are changed in Triton. None of them is a kernel's:
- The interpreter multiplies the bits of BF16 in tl.dot; here it multiplies its numbers.
- It cuts floats off to BF16; here it rounds them to the nearest, as devices do.
- It refuses masks that are integers.
- There is no device on which the configurations of a kernel could be timed. The last one that the kernel allows is
  taken; engines list the smallest tiles last, which the interpreter runs fastest.
- It replaces the functions of triton.language at each call of a device function: half of its time. Here it does so once
  for each file of kernels in a launch.
"""

import os


def dot_of_numbers(numpy, interpreter):
    builder = interpreter.InterpreterBuilder
    original = builder.create_dot

    def in_float(handle):
        if handle.dtype.scalar != interpreter.tl.bfloat16:
            return handle
        return interpreter.TensorHandle((handle.data.astype(numpy.uint32) << 16).view(numpy.float32),
                                        interpreter.tl.float32)

    builder.create_dot = lambda self, a, b, *rest: original(self, in_float(a), in_float(b), *rest)


def to_bf16(numpy, values):
    """The bits of the nearest BF16, ties to even."""
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7fc0, rounded).astype(numpy.uint16)


def nearest_bf16(numpy, interpreter):
    builder, tl = interpreter.InterpreterBuilder, interpreter.tl
    original = builder.create_fp_trunc

    def truncated(self, value, dtype):
        if value.dtype.scalar != tl.float32 or dtype.scalar != tl.bfloat16:
            return original(self, value, dtype)
        return interpreter.TensorHandle(to_bf16(numpy, value.data), tl.bfloat16)

    builder.create_fp_trunc = truncated


def any_mask(numpy, interpreter):
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def as_bool(mask):
        mask.data = mask.data.astype(numpy.bool_)
        return mask

    builder.create_masked_load = lambda self, places, mask, *rest: load(self, places, as_bool(mask), *rest)
    builder.create_masked_store = lambda self, places, value, mask, *rest: store(self, places, value, as_bool(mask),
                                                                                 *rest)


def last_configuration(triton, InterpreterError):
    autotune = triton.autotune

    def choose(configs, *arguments, **keywords):
        def decorate(function):
            kernels = [autotune([config], *arguments, **keywords)(function) for config in reversed(configs)]
            runs = [kernel.run for kernel in kernels]

            def run(*arguments, **keywords):
                for i, run_one in enumerate(runs):
                    try:
                        return run_one(*arguments, **keywords)
                    except InterpreterError as error:   # an assertion of the kernel about its configuration
                        if "AssertionError" not in str(error) or i == len(runs) - 1:
                            raise

            kernels[0].run = run
            return kernels[0]
        return decorate

    triton.autotune = choose


def language_once(interpreter):
    done = set()
    launch, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang

    def started(self, *arguments, **keywords):
        done.clear()
        return launch(self, *arguments, **keywords)

    def once(function):
        if id(function.__globals__) in done:
            return interpreter._LangPatchScope()
        done.add(id(function.__globals__))
        return patch(function)

    interpreter.GridExecutor.__call__, interpreter._patch_lang = started, once


def prepare():
    os.environ["TRITON_INTERPRET"] = "1"
    import numpy
    import triton
    import triton.runtime.interpreter as interpreter
    from triton.runtime.errors import InterpreterError
    dot_of_numbers(numpy, interpreter)
    nearest_bf16(numpy, interpreter)
    any_mask(numpy, interpreter)
    language_once(interpreter)
    last_configuration(triton, InterpreterError)
