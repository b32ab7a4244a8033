"""Tools for whoever works on this repository, or has files of an earlier version of it.

convert.py        turn run directories of layout 4 into layout 5
pack_results.py   put the runs of a study into two files, to keep them in results/
"""
