"""What a place of a text is: checks (Luhn, mod 97, shapes of numbering plans) and the words beside it.

Every function looks at a bounded window, so time is linear in the text. Numbers prove little by themselves: a card
needs its issuer's prefix and Luhn, a phone a shape or a word that says so, a national id its check digits or its name.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter

_PHONE_BEFORE = re.compile(
    rb"(?:phone|telephone|tel|mobile|cell(?:phone)?|fax|desk|office|dial|direct line|hotline|reach (?:me|us|him|her)"
    rb"|whatsapp|sms|text (?:me|us)|ring|messages? (?:to|from)|registered"
    rb"|call(?:\s+(?:me|us|him|her|them|back|you))?(?:\s+(?:at|on|under))?|number is"
    rb"|telefon|handy|mobil|t\xc3\xa9l(?:\xc3\xa9phone)?|tel\xc3\xa9fono|movil|m\xc3\xb3vil)\b[\s.:#=\"'\\()-]{0,8}"
    rb"(?:(?:no|number|nr|is|at|on|to|under|=)\b[\s.:#=\"'()-]{0,4}){0,3}\+?\(?$",
    re.IGNORECASE,
)
# What the expression can end in before its separators; looking for that first is ten times quicker.
_PHONE_SEPARATORS = b" \t\n\r\f\v.:#=\"'\\()-+"
_PHONE_ENDS = tuple(
    b"phone tel mobile cell fax desk office dial line me us him her whatsapp sms ring to from registered call them back"
    b" you at on under is telefon handy mobil fono vil no number nr".split()
)
_PHONE_EXTENSION = re.compile(rb" ?(?:x|ext\.?) ?\d{1,6}")
_JOINED_BEFORE = re.compile(rb"[\w+\-/=]")
_JOINED_AFTER = re.compile(rb"[\w-]")
_NO_DIGITS = bytes(c for c in range(256) if c not in b"0123456789")
_PHONE_AFTER = re.compile(
    rb"^(?:x\d{1,6})?[\s,(\\-]{0,3}(?:office|fax|mobile|cell|home|work|phone|desk|tel)\b", re.IGNORECASE
)
_PHONE_SHAPE = re.compile(
    rb"(?:(?:001|1)[-. ])?\(?[2-9]\d{2}\)?[-. ]?[2-9]\d{2}[-.]\d{4}"  # the North American plan
    rb"|\([2-9]\d{2}\) ?\d{3}[-. ]\d{4}"
    rb"|(?:001|1)[-.]\d{3}[-.]\d{3}[-.]\d{4}"
    rb"|\d{3}-\d{3}-\d{4}"
)
_INTERNATIONAL = re.compile(rb"[1-9]\d{0,2}[ ().\-]{0,3}\d[\d ().\-]{4,17}\d")
_CARD_WORD = re.compile(
    rb"card|visa|master|amex|american express|maestro|discover|diners|credit|debit|\bcc\b", re.IGNORECASE
)
_ISSUER = re.compile(
    rb"4\d{12}(?:\d{3}){0,2}|5[1-5]\d{14}|2[2-7]\d{14}|3[47]\d{13}|3(?:0[0-5]|[689]\d)\d{11}|6(?:011|5\d\d)\d{12}"
    rb"|(?:2131|1800)\d{11}|35\d{14}|(?:5[06789]|6\d)\d{10,17}"
)
_SOCIAL = re.compile(rb"(?!000|666|9\d\d)\d{3}([- ])(?!00)\d{2}\1(?!0000)\d{4}")
_ID_WORD = re.compile(
    rb"ssn|social security|national (?:id|insurance)|\bni(?:no)?\b|identity|id (?:no|number|card)|passport"
    rb"|\btax\b|steuer|ident|personal(?:nummer|ausweis)?|\bdni\b|\bnie\b|\bnif\b|\bcpf\b|\bbsn\b|aadhaar"
    rb"|codice fiscale|insee|s\xc3\xa9curit|burgerservice|social insurance|\bsin\b|driver|licen[cs]e",
    re.IGNORECASE,
)
_SECRET_WORD = re.compile(
    rb"(?:api[_-]?key|secret|access[_-]?key|(?:access|auth|bearer|refresh)?[_-]?token|passw(?:or)?d|passphrase|private[_-]?key"
    rb"|credentials?|client[_-]?secret)[\"']?\]?\s{0,3}[:=]\s{0,4}[A-Za-z]?[\"']$",
    re.IGNORECASE,
)
_TOKENS = re.compile(
    rb"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{50,255}"
    rb"|glpat-[A-Za-z0-9_\-]{20,64}|xox[abprs]-[A-Za-z0-9-]{10,255}|sk-(?:[a-z]{2,10}-)?[A-Za-z0-9_\-]{32,255}"
    rb"|[sr]k_live_[A-Za-z0-9]{20,255}|AIza[A-Za-z0-9_\-]{35}(?![A-Za-z0-9_\-])|hf_[A-Za-z0-9]{30,64}(?![A-Za-z0-9])"
    rb"|eyJ[A-Za-z0-9_\-]{10,2048}\.eyJ[A-Za-z0-9_\-]{10,4096}\.[A-Za-z0-9_\-]{10,2048}|npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"
    rb"|pypi-AgE[A-Za-z0-9_\-]{50,255}"
)
_PEM = re.compile(
    rb"-----BEGIN (?P<kind>[A-Z ]{0,32}PRIVATE KEY)-----(?:\s|\\n|\\){0,4}"
    rb"(?:[A-Za-z]+-[A-Za-z]+:[^\n]{1,100}\s{1,4}){0,4}"
    rb"[A-Za-z0-9+/=\s\\]{32,16384}-----END (?P=kind)-----"
)
_IBAN = re.compile(
    rb"[A-Za-z]{2}\d{2}(?:[A-Za-z0-9]{11,30}|(?: [A-Za-z0-9]{4}){2,7}(?: [A-Za-z0-9]{1,4})?)(?![A-Za-z0-9])"
)
_IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AL": 28, "AT": 20, "AZ": 28, "BA": 20, "BE": 16, "BG": 22, "BH": 22, "BR": 29, "BY": 28,
    "CH": 21, "CR": 22, "CY": 28, "CZ": 24, "DE": 22, "DK": 18, "DO": 28, "EE": 20, "EG": 29, "ES": 24, "FI": 18,
    "FO": 18, "FR": 27, "GB": 22, "GE": 22, "GI": 23, "GL": 18, "GR": 27, "GT": 28, "HR": 21, "HU": 28, "IE": 22,
    "IL": 23, "IQ": 23, "IS": 26, "IT": 27, "JO": 30, "KW": 30, "KZ": 20, "LB": 28, "LC": 32, "LI": 21, "LT": 20,
    "LU": 20, "LV": 21, "LY": 25, "MC": 27, "MD": 24, "ME": 22, "MK": 19, "MR": 27, "MT": 31, "MU": 30, "NL": 18,
    "NO": 15, "PK": 24, "PL": 28, "PS": 29, "PT": 25, "QA": 29, "RO": 24, "RS": 22, "SA": 24, "SC": 31, "SE": 24,
    "SI": 19, "SK": 24, "SM": 27, "ST": 25, "SV": 28, "TL": 23, "TN": 24, "TR": 26, "UA": 29, "VA": 22, "VG": 24,
    "XK": 20,
}  # fmt: skip
_NINO = re.compile(rb"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z]\d{6}[A-D]")
_DNI = re.compile(rb"(?P<head>[XYZ]?)(?P<digits>\d{7,8})(?P<letter>[A-Z])")
_FISCAL = re.compile(rb"[A-Z]{6}\d{2}[A-EHLMPRST]\d{2}[A-Z]\d{3}[A-Z]")
_VERSION_BEFORE = re.compile(
    rb"(?:version|release|\bv|\bver\.?|section|\xc2\xa7|rfc\s?\d*|firmware|build|\boid)\W{0,3}$"
    rb"|\b(?:upgrade|update|patch|bump|since|v8|chrome|version)\b[^.\n]{0,14}$",
    re.IGNORECASE,
)
_HOST_WORD = re.compile(rb"\bip\b|host|server|address|ping|dns|://|gateway|client|port|netmask", re.IGNORECASE)
_SERVICE = (b"git", b"hg", b"svn", b"noreply", b"no-reply")


def email(raw: bytes, start: int, end: int) -> bool:
    """An address of somebody; `git@host:path` is a place."""
    return raw[end : end + 1] != b":" or raw[start:end].split(b"@", 1)[0].lower() not in _SERVICE


def ipv4(raw: bytes, start: int, end: int) -> bool:
    """A routable host: not private, loopback, reserved or documentation space, and not a version number."""
    if raw[end : end + 1] == b"." and raw[end + 1 : end + 2].isalnum():
        return False
    try:
        address = ipaddress.IPv4Address(raw[start:end].decode())
    except ValueError:
        return False
    if not address.is_global or address.is_multicast:
        return False
    small = all(octet < 32 for octet in address.packed)  # versions and section numbers look like this; few hosts do
    if small and not _HOST_WORD.search(raw, max(0, start - 32), start):
        return False
    return _VERSION_BEFORE.search(raw, max(0, start - 24), start) is None


def ipv6(raw: bytes, start: int, end: int) -> int:
    """The end of a global unicast address that starts here, or 0."""
    text = raw[start:end].rstrip(b":")
    try:
        address = ipaddress.IPv6Address(text.decode())
    except ValueError:
        return 0
    whole = text.count(b":") == 7  # a short form such as 1::2 is too little unless it is of the space in use
    in_use = address.packed[0] >> 5 == 1  # 2000::/3; Python's [1::2] and [2::] are none
    good = address.is_global and not address.is_multicast and (whole or in_use)
    return start + len(text) if good else 0


def luhn(digits: bytes) -> bool:
    """ISO/IEC 7812-1 check digit."""
    total = 0
    for at, c in enumerate(reversed(digits)):
        value = c - 48
        total += value if at % 2 == 0 else value * 2 - 9 * (value > 4)
    return total % 10 == 0


def number(raw: bytes, start: int, end: int, code: bool) -> tuple[str, int, int] | None:
    """(kind, start, end) of a number that is somebody's: CARD, ID or PHONE."""
    text = raw[start:end]
    digits = text.translate(None, _NO_DIGITS)
    if _SOCIAL.fullmatch(text) and (not code or _ID_WORD.search(raw, max(0, start - 40), start)):
        return "ID", start, end
    if 12 <= len(digits) <= 19 and luhn(digits) and b"(" not in text and b"/" not in text:
        known = _ISSUER.fullmatch(digits)
        grouped = re.fullmatch(rb"\d{4}([ -])\d{4}\1\d{4}\1\d{4}|\d{4}([ -])\d{6}\2\d{5}", text)
        named = _CARD_WORD.search(raw, max(0, start - 60), start) or _CARD_WORD.search(raw, end, end + 30)
        if named or (grouped and known):
            return "CARD", start, end
    if code:
        return None
    if found := national_number(raw, start, end, digits):
        return found
    return phone(raw, start, end, digits)


def phone(raw: bytes, start: int, end: int, digits: bytes) -> tuple[str, int, int] | None:
    """A telephone number: in a shape that is one by itself, or beside a word that says so."""
    if not 7 <= len(digits) <= 15:
        return None
    text = raw[start:end]
    before = raw[start - 1 : start] if start else b""
    extension = _PHONE_EXTENSION.match(raw, end)
    stop = extension.end() if extension else end
    if before == b"+" and _INTERNATIONAL.fullmatch(text) and not raw[start - 2 : start - 1].isalnum():
        return "PHONE", start - 1, stop
    opened = start - (before == b"(")
    if opened > 0 and _JOINED_BEFORE.match(raw, opened - 1):
        return None
    if _PHONE_SHAPE.fullmatch(text if opened == start else b"(" + text) or _PHONE_SHAPE.fullmatch(text):
        return None if _JOINED_AFTER.match(raw, stop) and not _after(raw, stop) else ("PHONE", opened, stop)
    window = raw[max(0, start - 48) : start].lower()
    if window.rstrip(_PHONE_SEPARATORS).endswith(_PHONE_ENDS) and _PHONE_BEFORE.search(window):
        return "PHONE", opened, stop
    if _after(raw, stop):
        return "PHONE", opened, stop
    return None


def _after(raw: bytes, stop: int) -> bool:
    return _PHONE_AFTER.match(raw[stop : stop + 16]) is not None


def national_number(raw: bytes, start: int, end: int, digits: bytes) -> tuple[str, int, int] | None:
    """A national id of digits alone whose check digits fit, beside a word that says what it is."""
    if len(digits) not in (9, 10, 11, 12, 13, 15, 18):
        return None
    if b"." in raw[start:end] and len(digits) != 11:  # only Brazil writes dots
        return None
    if not _ID_WORD.search(raw, max(0, start - 48), start):
        return None
    d = [c - 48 for c in digits]
    fits = False
    if len(d) == 11:  # Brazil's CPF; Germany's tax id
        one = sum(x * w for x, w in zip(d, range(10, 1, -1), strict=False)) * 10 % 11 % 10
        two = sum(x * w for x, w in zip(d, range(11, 1, -1), strict=False)) * 10 % 11 % 10
        fits = (one, two) == (d[9], d[10]) or _iso7064(d)
    elif len(d) == 9:  # the Netherlands' BSN; Canada's SIN
        eleven = sum(x * w for x, w in zip(d, range(9, 1, -1), strict=False)) - d[8]
        fits = eleven % 11 == 0 or luhn(digits)
    elif len(d) == 12:
        fits = _verhoeff(d)  # India's Aadhaar
    elif len(d) == 15:  # France
        fits = 97 - int(digits[:13]) % 97 == int(digits[13:])
    elif len(d) == 18:  # China
        weights = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)
        fits = "10X98765432"[sum(x * w for x, w in zip(d, weights, strict=False)) % 11] == str(d[17])
    elif len(d) == 10:  # Sweden
        fits = luhn(digits)
    return ("ID", start, end) if fits else None


def _iso7064(d: list[int]) -> bool:
    product = 10
    for x in d[:10]:
        total = (x + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == d[10] and d[0] != 0


def _verhoeff(d: list[int]) -> bool:
    multiply = [[(b if a < 5 and b < 5 else 0) for b in range(10)] for a in range(10)]
    for a in range(10):  # the dihedral group of order ten
        for b in range(10):
            if a < 5:
                multiply[a][b] = (a + b) % 5 if b < 5 else 5 + (a + b) % 5
            else:
                multiply[a][b] = 5 + (a - b) % 5 if b < 5 else (a - b) % 5
    permute = [list(range(10)), [1, 5, 7, 6, 2, 8, 3, 0, 9, 4]]
    for i in range(2, 8):
        permute.append([permute[i - 1][permute[1][j]] for j in range(10)])
    check = 0
    for at, x in enumerate(reversed(d)):
        check = multiply[check][permute[at % 8][x]]
    return check == 0


def iban(raw: bytes, start: int) -> int:
    """The end of an IBAN that starts here (ISO 13616: length of its country, mod 97), or 0."""
    match = _IBAN.match(raw, start)
    if match is None:
        return 0
    text = match.group().replace(b" ", b"").upper().decode()
    length = _IBAN_LENGTHS.get(text[:2])
    if length is None or len(text) < length:
        return 0
    end = match.end()
    while len(raw[start:end].replace(b" ", b"")) > length:  # the next word was taken for its last group
        if b" " not in raw[start:end]:
            return 0
        end = start + raw[start:end].rstrip().rfind(b" ")
    text = raw[start:end].replace(b" ", b"").upper().decode()
    fits = len(text) == length and int("".join(str(int(c, 36)) for c in text[4:] + text[:4])) % 97 == 1
    return end if fits else 0


def mixed(raw: bytes, start: int, end: int) -> bool:
    """A national id of letters and digits: Spain's by its letter, Britain's and Italy's by shape and name."""
    word = raw[start:end]
    if match := _DNI.fullmatch(word):
        value = int((b"XYZ".find(match["head"]) if match["head"] else 0).__str__() + match["digits"].decode())
        return "TRWAGMYFPDXBNJZSQVHLCKE"[value % 23] == match["letter"].decode() and _named(raw, start)
    if _NINO.fullmatch(word) or _FISCAL.fullmatch(word):
        return len(word) == 16 or _named(raw, start)
    return False


def _named(raw: bytes, start: int) -> bool:
    return _ID_WORD.search(raw, max(0, start - 48), start) is not None


def token(raw: bytes, start: int) -> int:
    """The end of a well-known kind of key that starts here, or 0."""
    if start and re.match(rb"[A-Za-z0-9_]", raw[start - 1 : start]):
        return 0
    match = _TOKENS.match(raw, start)
    return match.end() if match else 0


def secret(raw: bytes, start: int, end: int) -> bool:
    """A quoted value that is assigned to something called a secret, and looks random."""
    window = raw[max(0, start - 60) : start].lower()
    if not any(stem in window for stem in (b"key", b"secret", b"token", b"pass", b"credential")):
        return False
    return _SECRET_WORD.search(window) is not None and looks_random(raw[start:end])


def looks_random(value: bytes) -> bool:
    """Letters and digits mixed with over 3 bits a character: a secret, not a name or a placeholder."""
    if not (re.search(rb"\d", value) and re.search(rb"[A-Za-z]", value)):
        return False
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values()) > 3.0


def private_key(raw: bytes, start: int) -> int:
    """The end of a private key in PEM that starts here, or 0."""
    match = _PEM.match(raw, start)
    return match.end() if match else 0
