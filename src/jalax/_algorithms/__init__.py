"""One file an algorithm. An algorithm imports neither the loop, nor fit, nor another one."""
