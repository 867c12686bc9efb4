"""What belongs together and is seen whole: changes of a program, values of a Scope, what operators were built with."""
