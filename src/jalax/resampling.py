"""Schemes that draw ancestors by weight, for `resample=`."""

from jalax._particles.resampling import multinomial as multinomial
from jalax._particles.resampling import residual as residual
from jalax._particles.resampling import stratified as stratified
from jalax._particles.resampling import systematic as systematic
