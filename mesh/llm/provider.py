"""What a package declares about a provider of models.

A package registers its `Provider` as an entry point of the group ``mesh.providers``. The entry point's name
is the prefix of the models: ``acme:fast`` is the model ``fast`` of the entry point ``acme``. The providers of
the mesh itself are registered in the same way (`mesh.llm.builtin`). `mesh.llm.installed` finds them all.

Every command that reads a config imports the declaration. What takes long to import, such as an SDK, belongs
into ``make``.
"""

from collections.abc import Callable, Iterable
from typing import Annotated, Literal, get_args

import msgspec
from pydantic import Field, StringConstraints, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from mesh.config.model import ModelParameters, ModelPrice
from mesh.config.section import ConfigSection
from mesh.config.values import Many, Text, Url
from mesh.config.yaml_tree import Loc
from mesh.llm.port import Llm

ParameterName = Literal["temperature", "top_p", "stop", "seed", "effort"]
ALL_PARAMETERS: tuple[ParameterName, ...] = get_args(ParameterName)
Variable = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")]


class ModelEndpoint(msgspec.Struct, frozen=True):
    """Where the requests of a provider go. ``name`` is the provider's, for messages. ``api_key`` is empty if
    there is none. ``base_url`` None: the default of the provider's SDK."""

    name: str
    api_key: str = ""
    base_url: str | None = None


def no_bounds(parameters: ModelParameters) -> Iterable[tuple[Loc, str]]:
    """A provider that takes every value that the config allows."""
    return ()


Make = Callable[[ModelEndpoint], Llm]
_WITHOUT_DEFAULT: list[Make] = []


def without_default(make: Make) -> Make:
    """Marks a function that cannot make a provider without a base URL. The declarations are checked for it:
    an SDK with a default of its own would send the key there."""
    _WITHOUT_DEFAULT.append(make)
    return make


class Provider(ConfigSection):
    """What the mesh has to know of a provider, besides its `Llm`.

    - ``make``: makes the `Llm` for an endpoint, with an event loop running. It may be a class.
    - ``parameters``: those that the API has, besides ``max_tokens``, which every provider must honour,
      because budgets count on it. Other parameters are problems of the config.
    - ``check_parameters``: problems of their values, as (location below ``parameters``, message), where the
      API allows less than the config.
    - ``key``: the environment variable that has to hold the API key; empty if there are no keys.
    - ``base_url``, ``base_url_variable``: where the API is, and the variable that says it is elsewhere.
      ``needs_key_elsewhere``: whether the key is required there too. A ``make`` `without_default`
      needs one of them.
    - ``prices``: what models cost, by their names without the prefix. ``price_list``: the id of the provider
      in ``genai-prices``, which knows the others. A model without a price cannot run under a money limit.
    - ``name``: what messages call the provider; empty means the name of the entry point.
    """

    make: Make
    parameters: Many[ParameterName]
    check_parameters: Callable[[ModelParameters], Iterable[tuple[Loc, str]]] = no_bounds
    key: Variable = ""
    base_url: Url | None = None
    base_url_variable: Annotated[Variable, Field(validate_default=True)] = ""
    needs_key_elsewhere: bool = True
    prices: dict[Text, ModelPrice] = {}
    price_list: str = ""
    name: str = ""

    @field_validator("base_url_variable")
    @classmethod
    def _address(cls, variable: str, info: ValidationInfo) -> str:
        declared = info.data
        if not variable and declared.get("make") in _WITHOUT_DEFAULT and declared.get("base_url", "") is None:
            made_by = declared["make"].__name__
            raise PydanticCustomError(
                "address", "{make} needs base_url, or base_url_variable, or both", {"make": made_by}
            )
        return variable

    @property
    def needs_address(self) -> bool:
        """Whether it cannot be made before its variable says where the API is."""
        return self.make in _WITHOUT_DEFAULT and self.base_url is None

    @property
    def taken(self) -> tuple[str, ...]:
        """The keys of ``parameters`` in a config that the provider takes."""
        return tuple(
            key for key in ModelParameters.model_fields if key == "max_tokens" or key in self.parameters
        )
