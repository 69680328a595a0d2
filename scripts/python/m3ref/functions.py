"""How a function of the user is called with named operands, and what it may return."""
import inspect

import numpy as np

from .tensors import format_of, numbers_of, to_array


def call(function, inputs, parameters, optional=()):
    """Calls a function with operands by name if it has a parameter for each of them, by position otherwise. Parameters
    of the operator are passed by name, those that the function takes; an absent optional operand is None if the
    function demands it."""
    try:
        taken = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function(*inputs.values())
    names = {p.name for p in taken if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_all = any(p.kind == p.VAR_KEYWORD for p in taken)
    named = {key: value for key, value in parameters.items() if takes_all or key in names}
    for p in taken:
        if p.name in optional and p.name not in inputs and p.default is p.empty:
            named[p.name] = None
    if takes_all or names.issuperset(inputs):
        return function(**inputs, **named)
    return function(*inputs.values(), **named)


def outputs_by_name(results, names, required, op):
    """Results as a dict: of one array, of a tuple in the order of the outputs, or of a dict."""
    if isinstance(results, dict):
        unknown = [name for name in results if name not in names]
        if unknown:
            raise TypeError(f"{op}: got an output {unknown[0]}, expected {', '.join(names)}")
        return dict(results)
    if isinstance(results, (tuple, list)) and not all(np.isscalar(x) for x in results) and len(names) > 1:
        for order in (names, required):
            if len(results) == len(order):
                return dict(zip(order, results))
        raise TypeError(f"{op}: got {len(results)} outputs, expected {', '.join(names)}")
    if results is None:
        raise TypeError(f"{op}: got no result, expected {', '.join(required)}")
    if len(required) > 1:
        raise TypeError(f"{op}: got one array, expected {', '.join(required)}")
    return {required[0]: results}


def fill(to, result, name):
    """Copies a result into the memory of an output."""
    array = to_array(result)
    try:
        format_of(array, name)
    except TypeError:
        if array.dtype.kind not in "iu" or to.dtype.kind != "i":
            raise
    if array.shape != to.shape:
        raise ValueError(f"{name}: got shape {list(array.shape)}, expected {list(to.shape)}")
    array = numbers_of(array)
    if (array.dtype.kind in "iu") != (to.dtype.kind == "i"):
        raise TypeError(f"{name}: got dtype {array.dtype}, expected {'integers' if to.dtype.kind == 'i' else 'floats'}")
    if to.dtype.kind == "i" and array.size and (array.max() > np.iinfo(to.dtype).max or
                                                array.min() < np.iinfo(to.dtype).min):
        raise ValueError(f"{name}: got an id that does not fit into {to.dtype}")
    np.copyto(to, array, casting="unsafe")
