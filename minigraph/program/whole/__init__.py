"""What belongs together and is seen whole: changes of a program, and what its operators were built with."""
