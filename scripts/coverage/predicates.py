"""Predicates: conditions on the numbers of a case, as text in the data file golden/op/coverage.json.

A predicate is an expression of comparisons, arithmetic, `and`, `or`, `not`, indices, and calls of the functions below.
Its names are the operands, outputs, parameters and sizes of a case, and the quantities that derived.py forms from
them. A name that is none of these is an error, never a predicate that is merely not true.
"""

import ast
import inspect
import math

import numpy as np

ALLOWED = (ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Invert, ast.BinOp, ast.Add,
           ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.MatMult, ast.Compare,
           ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Call, ast.Name, ast.Load, ast.Constant,
           ast.Subscript, ast.Slice, ast.Tuple)


class PredicateError(Exception):
    """A predicate that cannot be evaluated: wrong syntax, or a name that the case does not have."""


def distance(a, b):
    """The largest difference, as a share of the largest number; infinite for other shapes or NaN."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if a.shape != b.shape or np.isnan(a).any() or np.isnan(b).any():
        return math.inf
    same = a == b
    if same.all():
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0, np.abs(a - b)).max()
    largest = max(np.abs(a[np.isfinite(a)]).max(initial=0), np.abs(b[np.isfinite(b)]).max(initial=0))
    return apart / largest if largest else math.inf


FUNCTIONS = {
    "any": lambda x: bool(np.any(x)),
    "all": lambda x: bool(np.all(x)),
    "len": len,
    "count": lambda x: int(np.count_nonzero(x)),
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "ln": np.log,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "sig": lambda x: 1 / (1 + np.exp(-np.asarray(x, float))),
    "least": np.minimum,
    "greatest": np.maximum,
    "largest": lambda x: np.max(np.asarray(x, float), initial=-np.inf),
    "smallest": lambda x: np.min(np.asarray(x, float), initial=np.inf),
    "mean": lambda x: np.mean(x, axis=-1, keepdims=True),     # of the last dimension
    "total": lambda x: np.sum(x, axis=-1, keepdims=True),
    "wide": lambda x: np.asarray(x, float),
    "rounded": lambda x: np.asarray(x, np.float32).astype(float),
    "joined": lambda a, b: np.concatenate([a, b], axis=-1),
    "distinct": lambda x: len(np.unique(x)),
    "signed": np.signbit,
    "finite": np.isfinite,
    "given": lambda x: x is not None,
    "agrees": lambda a, b: distance(a, b) <= 1e-9,            # the formula gives what the reference gave
    "differs": lambda a, b: distance(a, b) > 1e-3,            # a wrong formula would show
}


class Scope:
    """Values by name: those of the case, then those that follow from them by a function whose arguments are names. An
    argument with a default is one that some operators do not have."""

    def __init__(self, values, derived, where):
        self.values, self.derived, self.where = dict(values), derived, where

    def has(self, name):
        function = self.derived.get(name)
        if name in self.values or function is None:
            return name in self.values
        return all(self.has(p.name) for p in inspect.signature(function).parameters.values() if p.default is p.empty)

    def __getitem__(self, name):
        if name in FUNCTIONS and name not in self.values:
            return FUNCTIONS[name]
        if name not in self.values:
            if not self.has(name):
                raise PredicateError(f"{self.where}: got the name {name}, expected an operand, an output, a parameter, "
                                     f"a size or a derived quantity of this operator")
            parameters = inspect.signature(self.derived[name]).parameters.values()
            self.values[name] = self.derived[name](*(self[p.name] if self.has(p.name) else p.default
                                                     for p in parameters))
        return self.values[name]


def compiled(text, where):
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as why:
        raise PredicateError(f"{where}: {why}: {text}") from None
    for node in ast.walk(tree):
        if not isinstance(node, ALLOWED):
            raise PredicateError(f"{where}: got {type(node).__name__}, expected an expression: {text}")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and not node.keywords):
            raise PredicateError(f"{where}: got a call of another form, expected FUNCTION(..): {text}")
    return compile(tree, where, "eval"), {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def holds(text, scope):
    """Is the predicate true of this case? All of its names must exist, also those that the value does not need."""
    code, names = compiled(text, scope.where)
    for name in sorted(names):
        if name not in FUNCTIONS and not scope.has(name):
            scope[name]
    try:
        with np.errstate(all="ignore"):
            value = eval(code, {"__builtins__": {}}, scope)
    except PredicateError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as why:
        raise PredicateError(f"{scope.where}: {why}: {text}") from None
    if not isinstance(value, (bool, np.bool_)):
        kind = type(value).__name__
        raise PredicateError(f"{scope.where}: got a value of type {kind}, expected true or false: {text}")
    return bool(value)
