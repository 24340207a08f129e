# Laplace's log-likelihood of a glmmTMB fit, at its own theta and at another:
# Rscript laplace.R DATA CALL NUMBER,NUMBER,...
arguments <- commandArgs(trailingOnly = TRUE)
options(warn = -1)
suppressMessages(library(glmmTMB))
data <- read.csv(arguments[1], stringsAsFactors = TRUE)
for (column in intersect(c("s", "d", "dept"), names(data))) {
  data[[column]] <- factor(data[[column]])
}
took <- system.time(fit <- suppressMessages(eval(parse(text = arguments[2]))))[["elapsed"]]
own <- fit$fit$par # the coefficients, then the log standard deviations, in the formula's order
other <- as.numeric(strsplit(arguments[3], ",")[[1]])
at <- function(par) -fit$obj$fn(par)
cat("seconds", took, "\n")
cat("own", format(own, digits = 12), "\n")
cat("at_own", format(at(own), digits = 12), "\n")
cat("at_other", format(at(other), digits = 12), "\n")
