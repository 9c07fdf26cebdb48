# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Tables, figures and the HTML report of what a run left on disk. No torch here.

A section of a report is a function: it takes a view of the run or study and gives a `cfl_flare.report.page.Section`, or
None where there is nothing to show. The report is one file, and its plots answer to the pointer.
"""
