"""Running a program on several ranks: threads of this process, processes under MPI."""
