"""The parts of `fastjit bench`; public names live in fastjit.bench."""
