# Refuses a Python without the global interpreter lock, which the extension relies on. Python_EXECUTABLE names it.
execute_process(COMMAND ${Python_EXECUTABLE} -c "import sysconfig; print(sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
                OUTPUT_VARIABLE PYTHON_LACKS_LOCK OUTPUT_STRIP_TRAILING_WHITESPACE)
if(PYTHON_LACKS_LOCK)
  message(FATAL_ERROR "fastjit relies on the global interpreter lock, and ${Python_EXECUTABLE} is a free-threaded Python: build with -DPython_EXECUTABLE naming one that has the lock, such as python3.14 in place of python3.14t")
endif()
