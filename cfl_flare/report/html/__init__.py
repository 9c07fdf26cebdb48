# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one HTML file that needs nothing else, with plots that answer to the pointer. No torch here.

Each section is a module with a function that takes a `View` of the run and gives a `Section`, or None where the run
left nothing to show; `page` makes the file.
"""
