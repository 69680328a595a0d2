"""A map for a dump with a program's own names, found by shapes and values: which tensor is which tap, and how."""
import itertools
import json
import os
import re
import subprocess
import tempfile

import numpy as np

from ._library import Error, program
from .model import ids_of, set_text
from .tensors import file_of, load, numbers_of, write_whole

NUMBERS = {"rows", "sequences", "tokens"}
ROWS, LAYERS = 48, 3                            # that are compared
SURE, LIKELY, ALIKE = 0.1, 0.6, 0.95            # relative errors in L2; of what has nothing in common it is 1 or more
NUMBER = re.compile(r"(?<!\w)(\d+)(?=\.)")      # a last number is that of a part of a tuple
# The dimensions of a row, by the letters of SPEC 1; of a tap of one dimension they are not needed.
LETTERS = {"q_proj": "QD", "k_proj": "GD", "v_proj": "GD", "q_norm": "QD", "k_norm": "GD", "q_rope": "QD",
           "k_rope": "GD", "attn": "QD", "index.q_proj": "GX", "index.q_norm": "GX", "index.q_rope": "GX",
           "index.block_scores": "G*", "index.blocks": "GN", "moe.expert_out": "KH"}
# Taps whose tensors stand side by side in one product.
FUSED = {"q_proj": "QD", "k_proj": "GD", "v_proj": "GD", "index.q_proj": "GX", "index.k_proj": "X", "mlp.gate": "I",
         "mlp.up": "I"}


def template(name):
    """("layers.{}.q_proj", 3) of "layers.3.q_proj"; the number is None if there is none."""
    found = NUMBER.search(name)
    if not found:
        return name, None
    return name[:found.start()] + "{}" + name[found.end():], int(found.group())


def by_template(dump):
    groups = {}
    for name in dump:
        key, number = template(name)
        groups.setdefault(key, {})[number] = name
    for key in [k for k in groups if k.endswith(".0")]:
        alone = groups.get(key[:-2])            # in the first layer a tensor, in others a tuple
        if alone and not set(alone) & set(groups[key]):
            groups[f"{key[:-2]}[.0]"] = groups.pop(key) | groups.pop(key[:-2])
    return groups


def off(got, want):
    """The error in L2, relative to how much the right values differ from their mean."""
    with np.errstate(invalid="ignore"):
        size = np.linalg.norm(want - want.mean())
    return float(np.linalg.norm(got - want) / size) if size and got.shape == want.shape else np.inf


class Side:
    """The tensors of one file by template, in rows that both files have: float32 [rows, ..]."""

    def __init__(self, dumps, chosen, others):
        self.dumps, self.chosen, self.others = dumps, chosen, others
        self.groups = by_template(dumps[0])
        self.kept = {}

    def get(self, name, rank=0):
        if (name, rank) not in self.kept:
            array = self.dumps[rank].get(name)
            self.kept[name, rank] = None if array is None else self.rows(np.asarray(numbers_of(array)))
        return self.kept[name, rank]

    def shape(self, name):
        """The dimensions in the file, "*" for its rows."""
        array = self.dumps[0][name]
        where = array.shape.index(self.others) if self.others in array.shape else -1
        return tuple("*" if axis == where else str(n) for axis, n in enumerate(array.shape))

    def rows(self, array):
        """Steps that put the rows in front, and the array so; None: it has no axis of rows."""
        steps = []
        if array.ndim > 1 and array.shape[0] == 1:
            array, steps = array[0], [{"drop": 0}]
        where = [axis for axis in range(array.ndim) if array.shape[axis] == self.others]
        if not where:
            return None
        if where[0]:
            order = [where[0], *(a for a in range(array.ndim) if a != where[0])]
            array, steps = array.transpose(order), [*steps, {"axes": order}]
        array = array[self.chosen]
        return steps, array.reshape(len(array), -1), array.shape[1:]


def keys_of(dump):
    """(sequence, row) of each row; None: not numbered."""
    if "rows" not in dump:
        return None
    rows = np.asarray(dump["rows"]).tolist()
    return list(zip(np.asarray(dump["sequences"]).tolist() if "sequences" in dump else [0] * len(rows), rows))


def length_of(dump):
    return max((a.shape[1] if a.shape[0] == 1 and a.ndim > 2 else a.shape[0] for a in dump.values() if a.ndim > 1),
               default=0)


def align(truth, mine):
    """The rows that are compared, of both; all rows of both."""
    keys = [keys_of(d) for d in (truth, mine)]
    count = [len(k) if k else length_of(d) for k, d in zip(keys, (truth, mine))]
    keys = [k or [(0, i) for i in range(n)] for k, n in zip(keys, count)]
    place = {key: i for i, key in enumerate(keys[0])}
    both = [(place[key], i) for i, key in enumerate(keys[1]) if key in place]
    if not both:
        raise ValueError("propose_map: no row of the dump is one of the case")
    both = both[::max(1, len(both) // ROWS)]
    return [p[0] for p in both], [p[1] for p in both], count


# ---- one tensor and one tap

def where_in(wide, want):
    """The column of `wide` that holds the first of `want`."""
    first = want[:, :1]
    return int(np.argmin(np.linalg.norm(wide - first, axis=0)))


def pieces_of(wide, want):
    """(error, steps) of `want` as columns of a wider tensor: side by side, every second, or in groups of heads."""
    W, w = wide.shape[1], want.shape[1]
    at = where_in(wide, want)
    best = (np.inf, [])
    for every in (1, 2):
        end = at + (w - 1) * every + 1
        if end <= W:
            cut = {"axis": 1, "from": str(at), "to": str(end)} | ({"every": str(every)} if every > 1 else {})
            best = min(best, (off(wide[:, at:end:every], want), [{"slice": cut}]), key=lambda b: b[0])
    for groups in range(2, 129):
        if best[0] < SURE or W % groups or w % groups:
            continue
        each, part = W // groups, w // groups
        if at + part > each:
            continue
        cut = wide.reshape(len(wide), groups, each)[:, :, at:at + part].reshape(len(wide), w)
        steps = [{"shape": ["*", str(groups), str(each)]},
                 {"slice": {"axis": 2, "from": str(at), "to": str(at + part)}}]
        best = min(best, (off(cut, want), steps), key=lambda b: b[0])
    return best


def scaled(got, want, factor):
    """By what the tensor has to be multiplied, if that explains it."""
    square = float(np.sum(got * got))
    times = float(np.sum(got * want)) / square if square else 0.0
    if not times or off(times * got, want) > SURE:
        return np.inf, []
    if factor and abs(times * factor - 1) < 0.02:
        return off(times * got, want), [{"times": "1/routed_scaling_factor"}]
    times = float(f"{times:.2g}")
    return off(times * got, want), [{"times": times}]


def interleaved(got, want, shape):
    """Heads whose halves are side by side, as pairs: RoPE in another order."""
    D = shape[-1] if len(shape) else 0
    if D < 4 or D % 2 or got.shape[1] % D:
        return np.inf, []
    order = [*range(0, D, 2), *range(1, D, 2)]
    moved = got.reshape(len(got), -1, D)[:, :, order].reshape(got.shape)
    return off(moved, want), [{"shape": ["*", str(got.shape[1] // D), str(D)]}, {"pick": {"axis": 2, "order": order}}]


def fit_numbers(got, want, shape, factor):
    if got.shape[1] < want.shape[1]:
        return np.inf, []
    if got.shape[1] > want.shape[1]:
        return pieces_of(got, want)
    plain = (off(got, want), [])
    if plain[0] < SURE:
        return plain
    return min(plain, scaled(got, want, factor), interleaved(got, want, shape), key=lambda b: b[0])


def fit_ids(got, want, name):
    """The share of the sets that differ; experts and blocks in any order, empty entries in any way."""
    if got.shape[1] != want.shape[1] or got.dtype.kind not in "iu":
        return np.inf, []
    last = [1, len(want), want.shape[1]]
    a, b = np.where(got < 0, -1, got).astype(int), want.astype(int)
    differ = np.mean([sorted(x) != sorted(y) for x, y in zip(a.reshape(last[1], -1), b.reshape(last[1], -1))])
    return float(differ), [{"blocks": True}] if name.endswith("blocks") else [{"ids": True}]


def fit(got, want, shape, name, factor):
    if want.dtype.kind in "iu":
        return fit_ids(got, want, name)
    if got.dtype.kind in "iu":
        return np.inf, []
    got, want = got.astype(np.float32), want.astype(np.float32)
    if name.endswith("moe.weights"):            # experts come in any order
        got, want = np.sort(got, axis=1), np.sort(want, axis=1)
    seen = np.isfinite(want).all(axis=1) & np.isfinite(got).all(axis=1)
    return fit_numbers(got[seen], want[seen], shape, factor) if seen.any() else (np.inf, [])


# ---- all of them

class Proposal:
    """`map`: what `--map FILE` reads; `lines`: what was found, in words; `doubts` of them."""

    def __init__(self, map, lines, doubts):
        self.map, self.lines, self.doubts = map, lines, doubts

    def __str__(self):
        return "\n".join(self.lines)

    def save(self, path):
        write_whole(path, [(json.dumps(self.map, indent=1) + "\n").encode()])
        return self


class Search:
    def __init__(self, truth, mine, factor):
        a, b, count = align(truth, mine[0])
        self.truth, self.mine, self.factor = Side([truth], a, count[0]), Side(mine, b, count[1]), factor
        self.ranks = len(mine)

    def has(self, tap):
        return tap not in NUMBERS and self.want(next(iter(self.truth.groups[tap].values()))) is not None

    def want(self, name):
        found = self.truth.get(name)
        return found[1:] if found else None

    def fit_ranks(self, names, want, shape, tap):
        """(error, steps, rule) of one tensor on all ranks, or of one file."""
        parts = [self.mine.get(names, r) for r in range(self.ranks)]
        if any(p is None for p in parts):
            return np.inf, [], None
        before, first, own = parts[0]
        if len(own) > 1 and (len(shape) < 2 or first.shape[1] != want.shape[1]):
            before = [*before, {"shape": ["*", str(first.shape[1])]}]
        error, steps = fit(first, want, shape, tap, self.factor)
        best = (error, before + steps, None)
        is_equal = all(p[1].shape == first.shape and np.array_equal(p[1], first) for p in parts)
        is_float = want.dtype.kind not in "iu"
        if self.ranks == 1 or is_equal:
            return best
        if is_float and all(p[1].shape == first.shape for p in parts):
            error, steps = fit(sum(p[1].astype(np.float64) for p in parts), want, shape, tap, self.factor)
            best = min(best, (error, before + steps, "sum"), key=lambda b: b[0])
        if want.shape[1] % self.ranks == 0 and (is_float or first.shape[1] * self.ranks == want.shape[1]):
            each = want.shape[1] // self.ranks
            found = [fit(p[1], want[:, r * each:(r + 1) * each], shape, tap, self.factor) for r, p in enumerate(parts)]
            worst = max(f[0] for f in found)
            best = min(best, (worst, before + found[0][1], "concat"), key=lambda b: b[0])
        return best

    def try_pair(self, tap, key, shift):
        """The best fit over the first layers that both have, and the shape of a row."""
        taps, tensors = self.truth.groups[tap], self.mine.groups[key]
        best, shape = (np.inf, [], None), ()
        numbers = [n for n in sorted(taps, key=str) if n is None or n + shift in tensors]
        for n in numbers[:LAYERS]:
            name = tensors.get(None if n is None else n + shift)
            want = self.want(taps[n])
            if name is None or want is None:
                continue
            found = self.fit_ranks(name, want[0], want[1], taps[n])
            if found[0] < best[0]:
                best, shape = found, want[1]
        return best, shape

    def recipes(self, tap, key, shift):
        """The steps of a tensor that has other shapes in layers of other kinds: a list for each shape of the tap's
        layers, which `only` tells apart."""
        taps, tensors, made = self.truth.groups[tap], self.mine.groups[key], {}
        for n in sorted(taps, key=str):
            name, want = tensors.get(n if n is None else n + shift), self.want(taps[n])
            if name is None or want is None or self.mine.shape(name) in made:
                continue
            error, steps, _ = self.fit_ranks(name, want[0], want[1], taps[n])
            if error <= LIKELY:
                made[self.mine.shape(name)] = steps
        shapes = {self.mine.shape(name) for name in tensors.values()}
        return [([{"only": list(shape)}] if len(shapes) > 1 else [], steps) for shape, steps in made.items()]

    def try_sum(self, tap):
        """Residuals that an engine keeps apart: two tensors of a layer that add up to the tap."""
        taps = self.truth.groups[tap]
        for n in sorted(taps, key=str)[:1]:
            want = self.want(taps[n])
            names = [(key, group[n]) for key, group in self.mine.groups.items() if n is not None and n in group]
            fitting = [(key, self.mine.get(name)) for key, name in names]
            fitting = [(key, f) for key, f in fitting if f and f[1].shape == want[0].shape and f[1].dtype.kind == "f"]
            for (a, x), (b, y) in itertools.combinations(fitting, 2):
                error = off(x[1].astype(np.float32) + y[1].astype(np.float32), want[0].astype(np.float32))
                if error < SURE and x[0] == y[0]:
                    return error, [a, b], x[0] + [{"sum": True}], want[1]
        return np.inf, [], [], ()


def letter_of(tap):
    return "m" if tap.startswith("mtp.") else "v" if tap.startswith("vision.") else "l"


def spelled(key, tap, shift):
    braces = "{%s%s}" % (letter_of(tap), f"{shift:+d}" if shift else "")
    return key.replace("{}", braces)


def width_in_letters(sizes, at):
    """A sum such as "QD+GD" that is the number `at`; the number itself if there is none."""
    names = list(sizes)
    for count in range(1, 6):
        for chosen in itertools.combinations(names, count):
            if at and sum(sizes[n] for n in chosen) == at:
                return "+".join(FUSED[n] for n in chosen)
    return str(at)


def tidy(steps, suffix, shape, sizes, ranks):
    """Steps in letters where a number is what the letters say, and the tap's own dimensions at the end."""
    made = []
    for step in steps:
        cut = step.get("slice")
        if cut and cut["axis"] == 1 and suffix in FUSED and "every" not in cut and ranks == 1:
            step = {"slice": cut | {"from": width_in_letters(sizes, int(cut["from"])) if int(cut["from"]) else "0",
                                    "to": width_in_letters(sizes, int(cut["to"]))}}
        made.append(step)
    letters = LETTERS.get(suffix)
    if letters and len(shape) > 1 and not any("pick" in s for s in made):
        made.append({"shape": ["*", *letters] if "*" not in letters else ["T", *letters]})
    return made


def propose_map(dump, model, *, case=None, ids=None, path=None, set=None):
    """Which tensor of a dump is which tap: a map for `--map`, found by the values of a run of the reference.

        print(m3ref.propose_map("mine.safetensors", MODEL, case=CASE, path="mine.json"))

    dump: a path, a folder of the ranks' files, or arrays by name; case or ids: what the dump was made from. Tensors are
    compared with the taps in at most 48 rows of three layers: as they are, times a factor, as a part of a wider tensor,
    with heads in another order of channels, as the sum of two, and over ranks. What is not certain stands in `doubts`,
    which are the map's notes too. A wrong program differs from the reference, and its tensors are found the worse; what
    comes before its first mistake is certain."""
    truth = reference(model, ids, case, set)
    search = Search(truth, files_of(dump), factor_of(model))
    sizes = {name: int(np.prod(a.shape[1:])) for suffix in FUSED for name, a in truth.items()
             if name.endswith(f".{suffix}") and name.count(".") == suffix.count(".") + 2 for name in [suffix]}
    return Writer(search, sizes).proposal(path)


class Writer:
    """Chooses the tensor of each tap, and writes the map and what is said of it."""

    def __init__(self, search, sizes):
        self.search, self.sizes = search, sizes
        self.taps, self.rules, self.lines, self.doubts, self.used = {}, {}, {}, [], set()
        self.nearest = {}                       # by tap: (error, tensor) of the best that is too far away

    def fits(self, tap):
        """(error, tensors, shift, steps, rule, shape) of every tensor that may be the tap, the best first."""
        found, numbered = [], None not in self.search.truth.groups[tap]
        for key, group in self.search.mine.groups.items():
            if key in NUMBERS or numbered == (None in group):
                continue
            for shift in (0, 1, -1) if numbered else (0,):
                (error, steps, rule), shape = self.search.try_pair(tap, key, shift)
                if error <= LIKELY:
                    found.append((error, abs(shift), [key], shift, steps, rule, shape))
                # Of the few that no layer has, the shape alone tells.
                elif error < self.nearest.get(tap, (ALIKE if numbered else np.inf,))[0]:
                    self.nearest[tap] = error, key, shift
        found = [f[:1] + f[2:] for f in sorted(found, key=lambda f: f[:3])]
        if found and found[0][0] < SURE:
            return found
        error, keys, steps, shape = self.search.try_sum(tap)
        return [(error, keys, 0, steps, None, shape), *found] if keys else found

    def add(self, tap, fit):
        error, keys, shift, steps, rule, shape = fit
        name, sources = spelled(tap, tap, 0), [spelled(key, tap, shift) for key in keys]
        found = self.search.recipes(tap, keys[0], shift) if len(keys) == 1 else []
        every = [only + tidy(own, tap.split("{}.")[-1], shape, self.sizes, self.search.ranks)
                 for only, own in found or [([], steps)]]
        recipes = [{"from": sources[0] if len(sources) == 1 else sources} | ({"steps": own} if own else {})
                   for own in every]
        self.taps[name] = recipes[0] if len(recipes) == 1 else recipes
        if rule == "sum":
            self.rules[name] = "sum"
        self.used.update(keys)
        text = f"{name} from {' + '.join(sources)}" + (f", {rule} over ranks" if rule else "")
        words = " or ".join(json.dumps(own) for own in every if own)
        self.lines[tap] = f"{text}{' ' + words if words else ''}: {error:.1e}"
        if not error < SURE:
            self.doubts.append(f"{text}: {error:.2g} away, it may be another")

    def choose(self):
        """What is certain first. A tensor that is certainly one tap is not perhaps another one."""
        fits = {tap: self.fits(tap) for tap in self.search.truth.groups if self.search.has(tap)}
        for tap, found in fits.items():
            if found and found[0][0] < SURE:
                self.add(tap, found[0])
        unsure = [(fit[0], tap, fit) for tap, found in fits.items() if tap not in self.lines for fit in found]
        for _, tap, fit in sorted(unsure, key=lambda u: u[:2]):
            if tap not in self.lines and not self.used & set(fit[1]):
                self.add(tap, fit)
        return fits

    def proposal(self, path):
        fits = self.choose()
        if not self.taps:
            raise ValueError("propose_map: no tensor of the dump is like a tap of the case: are model and case those "
                             "of the dump?")
        missing = [spelled(tap, tap, 0) for tap in fits if tap not in self.lines]
        for tap, (error, key, shift) in self.nearest.items():
            if tap not in self.lines and key not in self.used:
                self.doubts.append(f"{spelled(tap, tap, 0)} has no tensor; the nearest is {spelled(key, tap, shift)}, "
                                   f"{error:.2g} away: if it is that tap, it is wrong")
        lines = [self.lines[tap] for tap in fits if tap in self.lines] + [f"doubt: {doubt}" for doubt in self.doubts]
        unused = [spelled(key, "layers.", 0) for key in self.search.mine.groups if key not in self.used | NUMBERS]
        lines += [f"no tensor: {', '.join(missing)}"] if missing else []
        lines += [f"no tap: {', '.join(unused)}"] if unused else []
        made = {"name": "proposed", "source": ["m3ref.propose_map: found by values"], "notes": self.doubts}
        if self.search.ranks > 1:
            made |= {"files": "ranks", "divided": "QGI", "rules": self.rules}
        proposal = Proposal(made | {"taps": {spelled(t, t, 0): self.taps[spelled(t, t, 0)] for t in fits
                                             if t in self.lines}}, lines, self.doubts)
        return proposal.save(path) if path else proposal


def reference(model, ids, case, set):
    """The taps of a run by the program, which takes several sequences too."""
    if (ids is None) == (case is None):
        raise Error("propose_map: got both ids and case, or neither, expected one of them", 64)
    path, kept = file_of(case) if case is not None else (None, None)
    given = ["--case", path] if path else ["--ids", ",".join(map(str, ids_of(ids).tolist()))]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "taps.safetensors")
        words = [program(), "run", os.fspath(model), *given, "--dump", out, *(["--set", set_text(set)] if set else [])]
        done = subprocess.run(words, capture_output=True, text=True, pass_fds=[kept.fd] if kept else [])
        if done.returncode:
            raise Error(done.stderr.strip() or f"status {done.returncode}", done.returncode)
        return load(out)


def files_of(dump):
    """The dump of each rank."""
    if isinstance(dump, dict):
        return [dump]
    path = os.fspath(dump)
    if not os.path.isdir(path):
        return [load(path)]
    number = lambda name: int((re.findall(r"\d+", name) or ["0"])[-1])     # noqa: E731
    names = sorted((n for n in os.listdir(path) if n.endswith(".safetensors")), key=number)
    if not names:
        raise ValueError(f"{path}: got no .safetensors file, expected one for each rank")
    return [load(os.path.join(path, name)) for name in names]


def factor_of(model):
    with open(os.path.join(os.fspath(model), "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    return config.get("text_config", config).get("routed_scaling_factor")
