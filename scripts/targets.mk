# Launching, testing, checking, installing. Included by the Makefile.
