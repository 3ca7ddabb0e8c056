#pragma once
// As src/pch.h, without pybind11.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <Python.h>
