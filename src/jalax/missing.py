"""What becomes of rows with missing values, for `jalax.mixed(missing=...)`."""

from jalax.models._kept_rows import Drop as Drop
from jalax.models._kept_rows import Refuse as Refuse
