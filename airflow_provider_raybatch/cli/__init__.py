# SPDX-License-Identifier: Apache-2.0
"""The command line: ``raybatch VERB`` and ``airflow raybatch VERB``.

Airflow imports `definition` at each start, so it imports nothing but the standard library; a verb's own
module is imported when the verb is called.
"""
