"""Every way in which a dictionary can change is seen by the facts about it, however this Python tells of a change."""

import gc
import itertools
import subprocess
import sys

import pytest

from observer_tools import HELPERS, built, observe, program, supported

pytestmark = supported

SOURCE = """
import sys
class Box:
  pass
box, D, E = Box(), {"k": 2, "other": 1}, {}
box.k = 2
def attribute(x): return x * box.k
def item(x): return x * D["k"]
def absent(x): return x * D.get("more", 1)
def count(x): return x * len(D)
def empty(x): return x * (1 if E else 2)
def glob(x): return x * K
K = 2
"""
# (function, what changes what it reads): each is undone by a new program.
CHANGES = [
    ("attribute", "box.k = 3"),
    ("attribute", "del box.k"),
    ("attribute", "setattr(box, 'k', 3)"),
    ("attribute", "vars(box)['k'] = 3"),
    ("attribute", "vars(box).update(k=3)"),
    ("attribute", "vars(box).clear()"),
    ("attribute", "vars(box).pop('k')"),
    ("attribute", "box.__dict__ = {'k': 3}"),
    ("attribute", "box.__dict__ = {'k': 2}"),
    ("attribute", "for i in range(40): setattr(box, f'a{i}', i)\nbox.k = 3"),
    ("item", "D['k'] = 3"),
    ("item", "D[''.join(['', 'k'])] = 3"),
    ("item", "del D['k']"),
    ("item", "D.pop('k')"),
    ("item", "D.popitem(); D.popitem()"),
    ("item", "D.clear()"),
    ("item", "D.update(k=3)"),
    ("item", "D |= {'k': 3}"),
    ("item", "dict.__init__(D, k=3)"),
    ("item", "D.__setitem__('k', 3)"),
    ("item", "import operator; operator.setitem(D, 'k', 3)"),
    ("item", "D = {'k': 2}"),
    ("item", "D[1] = 1; D['k'] = 3"),
    ("absent", "D.setdefault('more', 5)"),
    ("absent", "D['more'] = 5"),
    ("count", "D[5] = 1"),
    ("count", "D.setdefault(5)"),
    ("count", "D.popitem()"),
    ("empty", "E.update({'k': 2})"),
    ("empty", "E |= dict(k=2)"),
    ("empty", "E.setdefault('k')"),
    ("glob", "K = 3"),
    ("glob", "del K"),
    ("glob", "globals()['K'] = 3"),
    ("glob", "sys.modules['model'].K = 3"),
    ("glob", "exec('K = 3', globals())"),
]


@pytest.fixture(scope="session")
def ext():
    return built()


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_each_way_to_change_a_dictionary_is_seen(ext, name, change):
    module = program(SOURCE)
    seen = observe(ext, getattr(module, name), module.T)
    assert seen.unsound == "" and seen.facts.check()
    exec(change, module.__dict__)
    assert not seen.facts.check()


@pytest.mark.parametrize("store", ["o.k = v", "vars(o)['k'] = v", "setattr(o, 'k', v)"])
@pytest.mark.parametrize("has_own", [False, True], ids=["values in the object", "a dictionary of its own"])
def test_a_store_that_the_interpreter_has_specialised(ext, store, has_own):
    """It ran often, on objects whose dictionary nothing had asked for, before it meets the one that facts are about."""
    module = program(f"{SOURCE}\ndef store(o, v): {store}")
    for _ in range(1000):
        other = module.Box()
        if has_own:
            other.__dict__ = {"k": 1}
        module.store(other, 2)
    if has_own:
        module.box.__dict__ = {"k": 2}
    seen = observe(ext, module.attribute, module.T)
    for value in itertools.islice(itertools.cycle((3, 2)), 1000):
        module.store(module.box, value)
        assert seen.facts.check() == (value == 2)


def test_a_change_that_is_undone_before_the_check(ext):
    module = program(SOURCE)
    seen = observe(ext, module.item, module.T)
    for _ in range(100):
        module.D["k"] = 3
        module.D["k"] = 2
        assert seen.facts.check()
    module.D["k"] = 3
    assert not seen.facts.check()


def test_a_check_in_the_midst_of_a_change(ext):
    """What one value's end runs sees the other values still there, or not: afterwards they are gone."""
    module = program(SOURCE + "class Value:\n  def __del__(self): checks.append(facts.check())")
    for attributes in ("aku", "kau"):
        module.box = module.Box()
        for name in attributes:
            setattr(module.box, name, 2 if name == "k" else module.Value())
        module.checks = []
        module.facts = observe(ext, module.attribute, module.T).facts
        assert module.facts.check()
        vars(module.box).clear()
        assert len(module.checks) == 2 and not module.facts.check()


def test_a_dictionary_that_takes_the_place_of_another(ext):
    """Also where its address is the same."""
    module = program(SOURCE)
    addresses = set()
    for i in range(50):
        module.box.__dict__ = {"k": 2}
        seen = observe(ext, module.attribute, module.T)
        addresses.add(id(module.box.__dict__))
        module.box.__dict__ = {}
        module.box.__dict__ = {"k": 3 + i}
        assert not seen.facts.check()
    assert len(addresses) < 50  # some were used again


def test_facts_outlive_dictionaries_and_dictionaries_facts(ext):
    for _ in range(200):
        module = program(SOURCE)
        kept = [observe(ext, getattr(module, name), module.T).facts for name in ("attribute", "item", "glob")]
        assert all(facts.check() for facts in kept)
        facts = kept.pop()
        del kept
        module.D["k"] = module.box.k = 3  # facts about these are gone
        assert facts.check()
        glob = module.glob
        del module.K
        assert not facts.check()
        del module, glob
        gc.collect(0)
        assert not facts.check()


def test_many_facts_about_one_dictionary(ext):
    module = program(SOURCE)
    kept = [observe(ext, module.item, module.T).facts for _ in range(20)]
    del kept[::2]
    assert all(facts.check() for facts in kept)
    module.D["k"] = 3
    assert not any(facts.check() for facts in kept)
    module.D["k"] = 2
    assert all(facts.check() for facts in kept)


if sys.version_info >= (3, 14):

    def test_no_watcher_is_free(ext):
        """Others took all that a process has: each check looks into the dictionaries then."""
        script = f"""
from observer_tools import HELPERS, built, observe, program
ext = built()
assert ext.take_dict_watchers() > 0
module = program({SOURCE!r})
seen = observe(ext, module.item, module.T)
for value in (2, 3, 2, 3):
    module.D["k"] = value
    assert seen.facts.check() == (value == 2)
"""
        subprocess.run([sys.executable, "-c", script], cwd=HELPERS, check=True)
