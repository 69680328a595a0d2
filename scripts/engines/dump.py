"""Runs a public engine on a case and writes its taps.

    python3 scripts/engines/dump.py ENGINE MODEL CASE OUT [--dtype f32|bf16|f16] [--chunk N] [--decode N] [--mtp]
            [--repaired] [--mistake NAME]
    m3ref check MODEL OUT --case CASE
    python3 scripts/engines/dump.py llama_cpp MODEL CASE OUT --dtype q8_0 --weights MODEL_Q8_0
    m3ref check MODEL_Q8_0 OUT --case CASE --map llama_cpp --profile llama_cpp

An engine runs in a virtual environment of its own, build/engines/ENGINE, which is made when it is first needed.
"""

import importlib
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from engines import environments, registry  # noqa: E402


def in_environment(words):
    from engines import adapter
    options = adapter.parsed(words, [name for name, engine in registry.ENGINES.items() if not engine.kernels])
    engine = registry.ENGINES[options.engine]
    for name, got, known in (("--dtype", options.dtype, engine.dtypes), ("--kv", options.kv, ("", *engine.caches))):
        if got not in known:
            sys.exit(f"dump.py: {options.engine}: {name}: got {got}, expected {' or '.join(known) or 'nothing'}")
    if options.weights and not engine.converts:
        sys.exit(f"dump.py: {options.engine}: --weights: got it, expected an engine that converts its weights")
    if options.decode and not engine.serves:
        sys.exit(f"dump.py: {options.engine}: --decode: got it, expected an engine that serves sequences")
    if os.path.lexists(options.weights):
        sys.exit(f"dump.py: {options.weights}: got a name that exists, expected a new folder")
    case, dump = adapter.Case(options.case, engine.serves), adapter.Dump()
    change = None
    if options.mistake:
        from engines import mistakes
        change = mistakes.function(options.engine, options.mistake)
    producer = importlib.import_module("engines." + engine.adapter).run(options.model, case, dump, options, change)
    if producer:
        adapter.write(dump, case, options, producer)


def main():
    words = sys.argv[1:]
    name = words[0] if words else ""
    if name in registry.ENGINES and not environments.inside(name):
        python = environments.python(name)
        os.execv(python, [python, os.path.abspath(__file__), *words])
    if name not in registry.ENGINES:
        sys.exit(f"dump.py: got {name or 'nothing'}, expected an engine: {', '.join(registry.ENGINES)}")
    # The folder of this file would hide packages of the same name as an adapter.
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]
    in_environment(words)


if __name__ == "__main__":
    main()
