# Fits of glmmTMB, lme4 and ordinal, one a line of CALLS: Rscript families.R CALLS FOLDER
# Writes each data set to FOLDER as NAME.csv, with the levels of its factors in NAME.levels.
arguments <- commandArgs(trailingOnly = TRUE)
options(warn = -1, contrasts = c("contr.treatment", "contr.treatment"))
suppressMessages({library(lme4); library(glmmTMB); library(ordinal)})
data(list = c("Owls", "Salamanders", "epil2"), package = "glmmTMB")
data(list = c("cbpp", "sleepstudy", "Dyestuff", "Penicillin"), package = "lme4")
data(list = "wine", package = "ordinal")
wine$share <- wine$response / 101
for (name in c("Owls", "Salamanders", "epil2", "cbpp", "sleepstudy", "Dyestuff", "Penicillin", "wine")) {
  d <- get(name)
  factors <- names(d)[sapply(d, is.factor)]
  write.csv(d, file.path(arguments[2], paste0(name, ".csv")), row.names = FALSE)
  lines <- sapply(factors, function(f) paste(c(f, levels(d[[f]])), collapse = "\t"))
  writeLines(as.character(lines), file.path(arguments[2], paste0(name, ".levels")))
}
for (call in readLines(arguments[1])) {
  took <- c(0, 0)
  for (k in 1:2) took[k] <- system.time(fit <- suppressMessages(eval(parse(text = call))))[["elapsed"]]
  fixed <- if (inherits(fit, "clmm")) fit$beta else if (inherits(fit, "glmmTMB")) fixef(fit)$cond else fixef(fit)
  cat(took, format(as.numeric(logLik(fit)), digits = 12), format(as.numeric(fixed), digits = 10), "\n", sep = "\t")
}
