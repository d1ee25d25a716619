"""The forms of linear attention: the same numbers, computed in different orders."""

from eigenclock.attention.forms import chunked, parallel, recurrent
from eigenclock.attention.forms.task import Form, Task

FORMS: dict[str, Form] = {
    "chunked": chunked.form,
    "recurrent": recurrent.form,
    "parallel": parallel.form,
}

__all__ = ["FORMS", "Form", "Task"]
