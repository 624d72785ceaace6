"""Messages of make.py: one or more of every type of the API with each of its fields set, as bytes and as text."""

from google.protobuf import text_format

from make_servers import PACKAGE, base64_text

DEEPEST = 2  # what is deeper has an entry of its own


def is_repeated(field):
    return field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def scalar(field, variant):
    """A value that is not the default, follows from the field's number, and uses the type's width."""
    n = field.number
    kinds = {field.TYPE_STRING: f"{field.name} \u00e9 {variant}", field.TYPE_BYTES: b"\x00\xff" + field.name.encode(),
             field.TYPE_BOOL: True, field.TYPE_FLOAT: 0.5 + n, field.TYPE_DOUBLE: 0.25 + n,
             field.TYPE_INT32: -n if variant % 2 else 2**30 + n, field.TYPE_INT64: -n if variant % 2 else 2**60 + n,
             field.TYPE_FIXED64: 2**63 + n, field.TYPE_UINT64: 2**63 + n, field.TYPE_UINT32: 2**31 + n}
    if field.type == field.TYPE_ENUM:
        values = [value.number for value in field.enum_type.values if value.number != 0]
        return values[variant % len(values)]
    return kinds[field.type]


def fill(protocol, message, variant, depth=0):
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        info = protocol.message("google.rpc.ErrorInfo")(reason="SESSION_BUSY", domain="gdn", metadata={"field": "layer"})
        message.type_url = "type.googleapis.com/google.rpc.ErrorInfo"
        message.value = info.SerializeToString()
        return message
    for field in message.DESCRIPTOR.fields:
        chosen = field.containing_oneof
        if chosen is not None and len(chosen.fields) > 1 and chosen.fields[variant % len(chosen.fields)] is not field:
            continue
        if field.type == field.TYPE_MESSAGE:
            if depth == DEEPEST:
                continue
            if is_repeated(field):
                fill(protocol, getattr(message, field.name).add(), variant, depth + 1)
            else:
                getattr(message, field.name).SetInParent()
                fill(protocol, getattr(message, field.name), variant, depth + 1)
        elif is_repeated(field):
            getattr(message, field.name).extend([scalar(field, variant), scalar(field, variant + 1)])
        else:
            setattr(message, field.name, scalar(field, variant))
    return message


def descriptors_of(protocol):
    def nested(message):
        yield message
        for inner in message.nested_types:
            if not inner.GetOptions().map_entry:
                yield from nested(inner)
    for file in protocol.files:
        if file.package == PACKAGE:
            for message in protocol.pool.FindFileByName(file.name).message_types_by_name.values():
                yield from nested(message)


def record(protocol):
    """[{"type", "text": lines, "bytes": base64}, ..]: as many of a type as one of its oneofs has members."""
    entries = []
    for descriptor in sorted(descriptors_of(protocol), key=lambda d: d.full_name):
        for variant in range(max([len(oneof.fields) for oneof in descriptor.oneofs], default=1)):
            message = fill(protocol, protocol.message(descriptor.full_name)(), variant)
            entries.append({"type": descriptor.full_name, "text": text_format.MessageToString(message).splitlines(),
                            "bytes": base64_text(message.SerializeToString(deterministic=True))})
    return entries
