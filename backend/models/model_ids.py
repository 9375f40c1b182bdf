"""The ids of model files: each file keeps the id under which it was first seen, in `<data>/models/ids.json`."""

from __future__ import annotations

import json
import logging
import os
import re
import time
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path

from backend.child.download.workspace import NAME, lock_for
from backend.common.files import is_reserved_windows_name, read_text
from backend.common.formats.gguf.kinds import PICKLES
from backend.engines import model_formats

log = logging.getLogger(__name__)
_LOCK_S = 2.0
_ID_CHARS = 200  # ids are names of folders too
_LETTERS = """
а=a б=b в=v г=g д=d е=e ж=zh з=z и=i й=y к=k л=l м=m н=n о=o п=p р=r с=s т=t у=u ф=f х=kh ц=ts ч=ch ш=sh
щ=shch ъ= ы=y ь= э=e ю=yu я=ya α=a β=b γ=g δ=d ε=e ζ=z η=i θ=th ι=i κ=k λ=l μ=m ν=n ξ=x ο=o π=p ρ=r σ=s ς=s
τ=t υ=y φ=f χ=ch ψ=ps ω=o ß=ss æ=ae œ=oe ø=o ł=l đ=d ð=d þ=th ı=i ħ=h ŧ=t ё=yo є=ye і=i ї=yi ґ=g ў=u ђ=dj ј=j
љ=lj њ=nj א=a ב=b ג=g ד=d ה=h ו=v ז=z ח=h ט=t י=y ך=k כ=k ל=l ם=m מ=m ן=n נ=n ס=s ע=a ף=p פ=p ץ=ts צ=ts ק=k
ר=r ש=sh ת=t ا=a ب=b ت=t ث=th ج=j ح=h خ=kh د=d ذ=dh ر=r ز=z س=s ش=sh ص=s ض=d ط=t ظ=z ع=a غ=gh ف=f ق=q ك=k ل=l
م=m ن=n ه=h و=w ي=y ћ=c џ=dz ŋ=ng ə=e ー=
模=mo 型=xing 大=da 小=xiao 中=zhong 微=wei 通=tong 义=yi 千=qian 问=wen 百=bai 川=chuan 书=shu 生=sheng 浦=pu 语=yu
文=wen 心=xin 一=yi 言=yan 混=hun 元=yuan 智=zhi 谱=pu 清=qing 深=shen 度=du 求=qiu 索=suo 英=ying 对=dui 话=hua
聊=liao 天=tian 助=zhu 手=shou 测=ce 试=shi 版=ban 指=zhi 令=ling 调=tiao 量=liang 化=hua 新=xin 旧=jiu 本=ben 地=di
机=ji 器=qi 人=ren 学=xue 习=xi 翻=fan 译=yi 图=tu 像=xiang 视=shi 觉=jue 音=yin 声=sheng 乐=yue 歌=ge 词=ci 诗=shi
写=xie 作=zuo 代=dai 码=ma 编=bian 程=cheng 数=shu 理=li 医=yi 疗=liao 法=fa 律=lu 金=jin 融=rong 角=jue 色=se 扮=ban
演=yan 故=gu 事=shi 说=shuo 思=si 考=kao 推=tui 快=kuai 慢=man 高=gao 低=di 精=jing 简=jian 繁=fan 体=ti 国=guo
华=hua 阿=a 里=li 云=yun 腾=teng 讯=xun 盘=pan 古=gu 星=xing 火=huo 月=yue 之=zhi 暗=an 面=mian 零=ling 万=wan 物=wu
日=ri 韩=han 多=duo 态=tai 二=er 三=san 四=si 五=wu 六=liu 七=qi 八=ba 九=jiu 十=shi 的=de 我=wo 你=ni 他=ta 好=hao
用=yong 最=zui 终=zhong 稳=wen 定=ding 实=shi 验=yan 开=kai 源=yuan 免=mian 费=fei 教=jiao 育=yu 科=ke 技=ji 公=gong
司=si 家=jia 庭=ting 东=dong 西=xi 南=nan 北=bei 京=jing 上=shang 海=hai 龙=long 凤=feng 虎=hu 狼=lang 猫=mao 狗=gou
鸟=niao 羊=yang 驼=tuo 马=ma 牛=niu 花=hua 草=cao 山=shan 水=shui 風=feng 风=feng 雨=yu 雪=xue 光=guang 電=dian
电=dian 力=li 動=dong 动=dong 語=yu 話=hua 對=dui 機=ji 學=xue 習=xi 圖=tu 聲=sheng 樂=yue 詞=ci 詩=shi 寫=xie 譯=yi
碼=ma 數=shu 國=guo 體=ti 開=kai 試=shi 測=ce 驗=yan 漢=han 汉=han 字=zi 典=dian
"""  # Cyrillic, Greek, Latin, Hebrew, Arabic, and Chinese characters that occur in names of models
_SPECIAL = {pair[0]: pair[2:] for pair in _LETTERS.split()}
_NAMED = re.compile(r"(?:LETTER|SYLLABLE|CHARACTER|VOWEL SIGN)(?: [A-Z-]+)*? ([A-Z]+)$")


class ModelIds:
    """The file of ids. Another process may change it, so it is read again whenever it changed."""

    def __init__(self, models_dir: Path) -> None:
        self._folder = models_dir
        self._file = models_dir / "ids.json"
        self._stamp: tuple[int, int] | None = None
        self._paths: dict[str, Path] = {}
        self._ids: dict[Path, str] = {}

    def paths(self) -> dict[str, Path]:
        """Return the files by id, also of files that are gone: their ids are never given to others."""
        self._refresh()
        return self._paths

    def id_of(self, file: Path, is_taken: Callable[[str], bool]) -> str:
        """Return the id of a file; a new one is stored. `is_taken` returns whether another model has an id."""
        self._refresh()
        known = self._ids.get(file)
        if known is None or is_taken(known):
            self.store([file], is_taken)
        return self._ids[file]

    def store(self, files: Iterable[Path], is_taken: Callable[[str], bool]) -> None:
        """Give each file without an id a new one, and store all of them with one write."""
        self._refresh()
        new = [file for file in files if (known := self._ids.get(file)) is None or is_taken(known)]
        if not new:
            return
        lock = lock_for(self._folder / NAME, self._file.name)
        try:
            (self._folder / NAME).mkdir(parents=True, exist_ok=True)
            until_s = time.monotonic() + _LOCK_S
            while not lock.acquire() and time.monotonic() < until_s:
                time.sleep(0.01)
            try:
                self._refresh()
                self._choose_all(new, is_taken)
                self._write()
            finally:
                lock.release()
        except OSError as error:  # they keep their ids until the process ends
            log.warning("ids of models not stored", extra={"file": str(self._file), "detail": str(error)})
            self._choose_all(new, is_taken)

    def _choose_all(self, files: Iterable[Path], is_taken: Callable[[str], bool]) -> None:
        for file in files:
            known = self._ids.get(file)
            if known is None or is_taken(known):
                self._choose(file, is_taken)

    def _choose(self, file: Path, is_taken: Callable[[str], bool]) -> None:
        """Choose the id of a file: its name, with a number if that is taken."""
        stem, number = slug(file), 2
        id_ = stem
        while is_taken(id_) or self._paths.get(id_, file) != file:
            id_, number = f"{stem}-{number}", number + 1
        self._paths[id_], self._ids[file] = file, id_

    def _refresh(self) -> None:
        try:
            facts = self._file.stat()
        except OSError:
            return
        if (facts.st_ino, facts.st_mtime_ns) == self._stamp:
            return
        try:
            stored: dict[str, str] = json.loads(read_text(self._file))["ids"]
            self._paths |= {id_: self._folder / path for id_, path in stored.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("ids of models not readable", extra={"file": str(self._file), "detail": str(error)})
        self._ids = {path: id_ for id_, path in self._paths.items()}
        self._stamp = facts.st_ino, facts.st_mtime_ns

    def _write(self) -> None:
        stored = {id_: self._written(path) for id_, path in sorted(self._paths.items())}
        fresh = self._file.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as out:
            json.dump({"ids": stored}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(self._file)

    def _written(self, path: Path) -> str:
        """Return a path as it is stored: the data folder may be moved."""
        return path.relative_to(self._folder).as_posix() if path.is_relative_to(self._folder) else str(path)


def slug(path: Path) -> str:
    """Return an id made from a file's name."""
    made = re.sub(r"[^a-z0-9._-]+", "-", transliterate(stem_of(path.name).lower()))
    made = made[:_ID_CHARS].strip("-.") or "model"
    return f"model-{made}" if is_reserved_windows_name(made) else made  # its files get this name


def stem_of(name: str) -> str:
    """Return the name of a model file or folder without the suffix of its format. A version such as 2.5 stays."""
    stem, dot, suffix = name.rpartition(".")
    known = {model_format.suffix for model_format in model_formats()} | {*PICKLES, ".safetensors", ".py"}
    return stem if stem and dot + suffix.lower() in known else name


def legacy_slug(path: Path) -> str:
    """Return the id that versions before 0.3 made: cut at the last dot, and without letters of other scripts."""
    made = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.") or "model"
    return f"model-{made}" if is_reserved_windows_name(made) else made


def transliterate(text: str) -> str:
    """Return a lower-case text with Latin letters in place of others, as far as Unicode names them."""
    return "".join(_transliterated(char) for char in unicodedata.normalize("NFC", text))


def _transliterated(char: str) -> str:
    if char.isascii():
        return char
    if char in _SPECIAL:
        return _SPECIAL[char]
    name = unicodedata.name(char, "")
    if (named := _NAMED.search(name)) and " WITH " not in name:
        return named[1].lower()
    pieces = unicodedata.normalize("NFKD", char)
    if pieces != char:
        return "".join(_transliterated(piece) for piece in pieces)
    if char.isalpha():
        return f"u{ord(char):x}"
    if unicodedata.category(char) == "So":  # an emoji or another picture
        return f" {name.lower()} "
    return str(unicodedata.digit(char, "")) or ("" if unicodedata.category(char).startswith("M") else "-")
