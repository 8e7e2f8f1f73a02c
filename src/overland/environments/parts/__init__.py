"""Small working modules that the code domain's repositories are made of; each stands for itself or uses its neighbours.

A repository holds renamed copies of some of them. The originals are what a solution is held against: `cases.py` draws
arguments, and what the functions here return is right.
"""
