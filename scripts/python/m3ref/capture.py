"""Dumps of a torch model under its own names: hooks on its modules, rows that are numbered, one file."""
import fnmatch
import json
import os
import struct
import tempfile

import numpy as np

from .tensors import BITS, PLAIN, bits_of, format_of, is_torch, to_array, write_whole

POSITIONS = ("position_ids", "positions", "cache_position")
COPIED = 1 << 24                                # bytes at a time


def array_of(value):
    """An array of numbers, or None."""
    return to_array(value) if is_torch(value) or isinstance(value, np.ndarray) else None


class Step:
    """The rows of one forward pass. `rows`, `sequences` and `tokens`: [N] or [B,S]; a negative row is padding."""

    def __init__(self, rows, sequences=None, tokens=None):
        rows = np.asarray(to_array(rows) if not isinstance(rows, range) else rows)
        if rows.dtype.kind not in "iu" or rows.ndim not in (1, 2) or not rows.size:
            raise ValueError(f"rows: got {rows.dtype} {list(rows.shape)}, expected whole numbers [N] or [B,S]")
        if sequences is None:
            sequences = np.arange(len(rows))[:, None] if rows.ndim == 2 else np.zeros(1, int)
        sequences = np.asarray(to_array(sequences))
        if sequences.ndim == 1 and rows.ndim == 2:
            sequences = sequences[:, None]
        try:
            sequences = np.broadcast_to(sequences, rows.shape)
        except ValueError:
            raise ValueError(f"sequences: got {list(sequences.shape)}, expected {list(rows.shape)}, "
                             "as there are rows") from None
        self.shape, self.chosen = rows.shape, np.flatnonzero(rows.reshape(-1) >= 0)
        self.rows, self.sequences = rows.reshape(-1)[self.chosen], sequences.reshape(-1)[self.chosen]
        self.seen, self.tokens = set(), None
        if tokens is not None:
            self.take_tokens(np.asarray(to_array(tokens)))

    def take_tokens(self, tokens):
        if tokens.size != int(np.prod(self.shape)) or tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens: got {tokens.dtype} {list(tokens.shape)}, expected whole numbers "
                             f"{list(self.shape)}, as there are rows")
        self.tokens = tokens.reshape(-1)[self.chosen]

    def in_order(self, array):
        """The array with one row for each of the step's, in front; None: it has other dimensions."""
        shape, N = self.shape, int(np.prod(self.shape))
        if array.ndim > 1 and array.shape[0] == 1 and (N > 1 if len(shape) == 1 else shape[0] > 1):
            array = array.reshape(array.shape[1:])
        if len(shape) == 2 and array.ndim > 1 and array.shape[0] == shape[0]:
            where = [axis for axis in range(1, array.ndim) if array.shape[axis] == shape[1]]
            if where:
                array = np.moveaxis(array, where[0], 1)
                array = array.reshape(N, *array.shape[2:])
        elif len(shape) == 1 and array.ndim and array.shape[0] != N and array.shape.count(N) == 1:
            array = np.moveaxis(array, array.shape.index(N), 0)
        if not array.ndim or array.shape[0] != N:
            return None
        return array if len(self.chosen) == N else array[self.chosen]


class Capture:
    """What `with m3ref.capture(..) as dump` gives: `dump.step(..)`, and after the block `dump.path`, `dump.notes`."""

    def __init__(self, model, path, names=("*",), inputs=(), rank=None):
        self.model, self.names, self.inputs = model, as_list(names), as_list(inputs)
        self.path, self.notes = os.fspath(path), []
        if rank is not None:
            os.makedirs(self.path, exist_ok=True)
            self.path = os.path.join(self.path, f"rank.{rank}.safetensors")
        self.pieces, self.steps, self.declared, self.handles = {}, [], None, []
        self.last, self.odd = {}, set()         # a row of each sequence; what had other numbers of rows
        self.spool = tempfile.TemporaryFile()

    # ---- hooks

    def __enter__(self):
        matched = set()
        for name, module in self.model.named_modules():
            if not name:
                self.handles.append(module.register_forward_pre_hook(self.begin, with_kwargs=True))
                continue
            if self.matches(name, self.names, matched):
                self.handles.append(module.register_forward_hook(self.after(name)))
            if self.matches(name, self.inputs, matched):
                self.handles.append(module.register_forward_pre_hook(self.before(name), with_kwargs=True))
        unmatched = [pattern for pattern in self.names + self.inputs if pattern not in matched]
        self.notes += [f"no module is called {pattern}" for pattern in unmatched]
        return self

    @staticmethod
    def matches(name, patterns, matched):
        found = [p for p in patterns if fnmatch.fnmatchcase(name, p)]
        matched.update(found)
        return bool(found)

    def __exit__(self, kind, why, trace):
        for handle in self.handles:
            handle.remove()
        try:
            if kind is None:
                self.write()
        finally:
            self.spool.close()

    def step(self, rows, sequences=None, tokens=None):
        """Says which rows the next forward pass has."""
        self.declared = Step(rows, sequences, tokens)

    def begin(self, module, inputs, keywords):
        """What a forward pass says of its rows itself, unless `step` said it."""
        step, self.declared = self.declared, None
        if step is None:
            step = self.step_of(inputs, keywords)
        ids = next((a for a in map(array_of, [keywords.get("input_ids"), *inputs]) if a is not None), None)
        if step.tokens is None and ids is not None and ids.dtype.kind in "iu" and ids.size == int(np.prod(step.shape)):
            step.take_tokens(ids)
        self.steps.append(step)

    def step_of(self, inputs, keywords):
        given = next((a for a in map(array_of, [*inputs, *keywords.values()]) if a is not None and a.ndim), None)
        mask = array_of(keywords.get("attention_mask"))
        for name in POSITIONS:
            rows = array_of(keywords.get(name))
            if rows is not None and rows.ndim in (1, 2) and rows.dtype.kind in "iu":
                if mask is not None and mask.ndim == 2 and rows.ndim == 2 and len(mask) == len(rows):
                    rows = np.where(mask[:, mask.shape[1] - rows.shape[1]:] != 0, rows, -1)
                return Step(rows[0] if rows.ndim == 2 and len(rows) == 1 else rows)
        if given is None:
            raise ValueError("capture: the model was given no tensor: say with step() which rows it computes")
        if mask is not None and mask.ndim == 2 and len(mask) == len(given) and given.ndim > 1:
            rows = np.where(mask != 0, np.cumsum(mask != 0, 1) - 1, -1)[:, mask.shape[1] - given.shape[1]:]
            return Step(rows)
        before = sum(len(s.rows) for s in self.steps)
        if given.ndim > 1 and given.shape[0] > 1 and given.dtype.kind in "iu":
            if before:
                raise ValueError("capture: got several passes of a batch: say with step() which rows each computes")
            return Step(np.broadcast_to(np.arange(given.shape[1]), given.shape[:2]))
        count = given.shape[1] if given.ndim > 1 and given.shape[0] == 1 else given.shape[0]
        return Step(np.arange(before, before + count))

    def before(self, name):
        def hook(module, inputs, keywords):
            values = [*inputs, *keywords.values()]
            self.put(f"{name}.in", next((v for v in values if array_of(v) is not None), None))
        return hook

    def after(self, name):
        def hook(module, inputs, result):
            parts = result if isinstance(result, (tuple, list)) else None
            if parts is None:
                self.put(name, getattr(result, "last_hidden_state", getattr(result, "logits", result)))
            for i, part in enumerate(parts or ()):
                self.put(f"{name}.{i}", part)
        return hook

    # ---- what was seen

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)

    def put(self, name, value):
        """Keeps a tensor of the step that runs."""
        array = array_of(value)
        if array is None or not self.steps:
            return
        step = self.steps[-1]
        if name in step.seen:
            self.note(f"{name}: called more than once in a pass, of which the first is kept")
            return
        step.seen.add(name)
        rows, count = step.in_order(array), len(set(step.sequences.tolist()))
        if rows is None and array.shape[:1] == (count,) and (array.ndim == 2 or array.shape[1:-1] == (1,)):
            self.last[name] = array.copy()
        elif rows is None:
            self.odd.add(name)
            self.note(f"{name}: left out: got {list(array.shape)}, expected {int(np.prod(step.shape))} rows")
        else:
            self.keep(name, rows)

    def keep(self, name, rows):
        """To the disk: what was captured may be larger than memory."""
        pieces = self.pieces.setdefault(name, [])
        if pieces and rows[0].size == np.prod(pieces[0][1], dtype=int):
            rows = rows.reshape(len(rows), *pieces[0][1])       # a pass of one row has more dimensions of 1
        if pieces and (pieces[0][1] != rows.shape[1:] or pieces[0][0] != format_of(rows, name)):
            self.note(f"{name}: left out of a pass: got {list(rows.shape[1:])}, expected {list(pieces[0][1])}")
            return
        data = bits_of(np.ascontiguousarray(bits_of(rows)))
        pieces.append((format_of(rows, name), rows.shape[1:], len(self.steps) - 1, self.spool.tell(), data.nbytes))
        self.spool.write(memoryview(data.reshape(-1)).cast("B"))

    # ---- the file

    def write(self):
        if not self.pieces:
            raise ValueError(f"{self.path}: nothing was captured: {'; '.join(self.notes) or 'no forward pass ran'}")
        whole, end = {}, len(self.steps) - 1
        for name, pieces in self.pieces.items():
            if [p[2] for p in pieces] == list(range(len(self.steps))):
                whole[name] = pieces
            elif name in self.last and name not in self.odd and pieces[-1][2] == end and self.ends_all():
                whole[name] = pieces[-1:]       # the last row of each sequence
            else:
                self.note(f"{name}: left out: not in every pass")
        numbers = self.numbers()
        numbers.update({name: array for name, array in self.last.items() if name not in {*whole, *self.odd}})
        write_whole(self.path, self.bytes_of(whole, numbers))

    def ends_all(self):
        """Has the last step one row of each sequence?"""
        every = np.unique(np.concatenate([s.sequences for s in self.steps]))
        return np.array_equal(self.steps[-1].sequences, every)

    def numbers(self):
        """`rows`, `sequences` unless there is but one, and `tokens` if they are known."""
        rows = np.concatenate([s.rows for s in self.steps]).astype(np.int32)
        sequences = np.concatenate([s.sequences for s in self.steps]).astype(np.int32)
        is_one = not sequences.any() and np.all(np.diff(rows) > 0)
        numbers = {"rows": rows} if is_one else {"rows": rows, "sequences": sequences}
        if all(s.tokens is not None for s in self.steps):
            numbers["tokens"] = np.concatenate([s.tokens for s in self.steps]).astype(np.int32)
        return numbers

    def bytes_of(self, whole, numbers):
        header, at = {"__metadata__": {"producer": "m3ref.capture"}}, 0
        sizes = {name: sum(p[4] for p in pieces) for name, pieces in whole.items()}
        sizes.update({name: array.nbytes for name, array in numbers.items()})
        form = {name: pieces[0][0] for name, pieces in whole.items()}
        form.update({name: format_of(array, name) for name, array in numbers.items()})
        width = {name: np.dtype(PLAIN.get(f) or BITS[f][0]).itemsize for name, f in form.items()}
        order = sorted(sizes, key=lambda name: -width[name])
        for name in order:
            count = sizes[name] // width[name]
            rest = list(whole[name][0][1]) if name in whole else list(numbers[name].shape[1:])
            rows = count // max(1, int(np.prod(rest)))
            header[name] = {"dtype": form[name], "shape": [rows, *rest], "data_offsets": [at, at + sizes[name]]}
            at += sizes[name]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        yield struct.pack("<Q", len(text)) + text
        for name in order:
            if name in numbers:
                yield memoryview(np.ascontiguousarray(bits_of(numbers[name])).reshape(-1)).cast("B")
            for piece in whole.get(name, ()):
                yield from self.read(piece[3], piece[4])

    def read(self, at, size):
        self.spool.seek(at)
        while size > 0:
            data = self.spool.read(min(size, COPIED))
            size -= len(data)
            yield data


def as_list(names):
    return [names] if isinstance(names, str) else list(names)


def capture(model, path, names=("*",), inputs=(), rank=None):
    """Writes what the modules of a torch model give, under their own names, while the block runs.

        with m3ref.capture(model, "mine.safetensors", names=["layers.*", "norm", "lm_head"]) as dump:
            dump.step(rows=[[0, 1, 2], [-1, 0, 1]])         # two requests, the second padded on the left
            model(ids)

    names: patterns of modules whose results are kept, `NAME`, or `NAME.0`, `NAME.1` of a tuple. inputs: of modules
    whose first argument is kept, as `NAME.in`; so what a module that several places share was given is kept too. rank:
    of this process, which writes `path/rank.R.safetensors`. A pass says with `dump.step(rows, sequences, tokens)` which
    rows it computes, [N] or [B,S], counted from the first token of a sequence; negative rows are padding; tokens are
    the pass's own first argument by default. Without it the pass's own position_ids and attention_mask say so; with
    neither, rows follow those of the pass before. Tensors go to a temporary file as they are seen. The dump has the
    tensors' dtypes, rows in front, and the numbers of rows and sequences. `dump.notes` says what was left out."""
    return Capture(model, path, names, inputs, rank)
