"""The widgets and sockets of a node, from /object_info."""

WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3", "LOAD_3D"}
PLAIN_DEFAULTS = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}


def split(inputs: dict, chosen: dict, prefix: str = "") -> tuple[dict[str, tuple], dict[str, str]]:
    """Return widgets (name to spec) and sockets (name to type) in order, with the members of lists."""
    widgets, sockets = {}, {}
    for section in ("required", "optional"):
        for name, raw in inputs.get(section, {}).items():
            spec = (raw[0], raw[1] if len(raw) > 1 else {})
            more_widgets, more_sockets = _unfold(prefix + name, spec, chosen)
            widgets |= more_widgets
            sockets |= more_sockets
    return widgets, sockets


def _unfold(name: str, spec: tuple, chosen: dict) -> tuple[dict[str, tuple], dict[str, str]]:
    kind, options = spec
    if kind == "COMFY_AUTOGROW_V3":
        return {}, _grown(name, options["template"], chosen)
    if not _is_widget(spec):
        return {}, {name: kind}
    if kind != "COMFY_DYNAMICCOMBO_V3":
        return {name: spec}, {}
    key = chosen.get(name, default(spec))
    option = next(option for option in options["options"] if option["key"] == key)
    widgets, sockets = split(option["inputs"], chosen, f"{name}.")
    return {name: spec, **widgets}, sockets


def _grown(name: str, template: dict, chosen: dict) -> dict[str, str]:
    """Return the sockets of a growing list as the canvas shows it: the used ones and a free one."""
    numbered = (f"{template.get('prefix')}{index}" for index in range(template.get("max", 0)))
    names = [f"{name}.{each}" for each in template.get("names") or numbered]
    used = sum(each in chosen for each in names)
    ((kind, *_),) = template["input"]["required"].values()
    return dict.fromkeys(names[: used + 1], kind)


def _is_widget(spec: tuple) -> bool:
    kind, options = spec
    return not options.get("forceInput") and (isinstance(kind, list) or kind in WIDGETS or "widgetType" in options)


def is_text(spec: tuple) -> bool:
    """Whether this widget has several lines."""
    return spec[0] == "STRING" and bool(spec[1].get("multiline"))


def kind_of(spec: tuple) -> str:
    """Return the canvas's type of a widget's slot."""
    return "COMBO" if isinstance(spec[0], list) else spec[0]


def default(spec: tuple):
    """Return the value of an untouched widget."""
    kind, options = spec
    if "default" in options:
        return options["default"]
    choices = kind if isinstance(kind, list) else options.get("options", [])
    if choices:
        return choices[0]["key"] if isinstance(choices[0], dict) else choices[0]
    return PLAIN_DEFAULTS.get(kind_of(spec))
