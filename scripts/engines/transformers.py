"""transformers on a CPU, by scripts/dump_transformers.py: its dumps have the names of modules (--map transformers)."""

import dump_transformers


def run(folder, case, dump, options, change=None):
    if options.chunk:
        raise SystemExit("transformers: got --chunk, expected a whole sequence")
    dump_transformers.dump(folder, case.path, options.out, options.dtype, "eager", "eager",
                           change=lambda model: change(model) if change else None)
