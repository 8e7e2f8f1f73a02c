"""Many ranks, applied from outside: layouts (layout, meshes, parallelize), balanced experts (balance), the planner."""
