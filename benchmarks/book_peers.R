# One fit by one of R's packages, twice: Rscript book_peers.R DATA PACKAGE CALL
# A line "name value" as soon as a number is known, so that the first fit survives the time limit
# of the second. The call finds its table as `data`.
arguments <- commandArgs(trailingOnly = TRUE)
options(warn = -1)

say <- function(name, value) {
  cat("book", name, format(value, digits = 12), "\n")
  flush(stdout())
}
seconds <- function(expression) system.time(expression)[["elapsed"]]

fail <- function(...) {
  cat("book failed", gsub("\\s+", " ", paste0(...)), "\n")
  quit(status = 0)
}

if (!nzchar(system.file(package = arguments[2]))) {
  fail("R has no package ", arguments[2], " (Debian: r-cran-", tolower(arguments[2]), ").")
}
say("load", seconds(suppressMessages(library(arguments[2], character.only = TRUE))))
say("version", as.character(packageVersion(arguments[2])))
data <- read.csv(arguments[1], stringsAsFactors = TRUE)
for (column in intersect(c("judge", "tree", "plate"), names(data))) {
  data[[column]] <- factor(data[[column]]) # numbers that are labels: clmm and nlmer want factors
}
call <- parse(text = arguments[3])

# With several points of quadrature glmer leaves the log-likelihood of the saturated model out, with
# one point it does not. It is 0 for rows of 0 and 1, not for counts.
saturated <- function(fit) {
  if (!inherits(fit, "glmerMod") || fit@devcomp$dims[["nAGQ"]] <= 1) return(0)
  size <- weights(fit)
  share <- getME(fit, "y")
  sum(dbinom(round(size * share), size, share, log = TRUE))
}

run <- function() {
  tryCatch(suppressMessages(eval(call)), error = function(error) fail(conditionMessage(error)))
}

say("first", seconds(fit <- run()))
say("log_likelihood", as.numeric(logLik(fit)) + saturated(fit))
say("second", seconds(run()))
