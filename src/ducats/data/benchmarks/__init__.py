"""Published domain-adaptation benchmarks, read in their original layout; nothing is downloaded.

A ``Benchmark`` describes each of them. Files are listed before any is decoded, which lets `ducats doctor`
check them without decoding.
"""
