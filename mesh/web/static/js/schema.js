// @ts-check
// What is certainly wrong with a value by its JSON Schema, to tell a person before it is sent. Pure. Keywords that are
// not here are left to the mesh, which has the last word: what is reported here, it refuses too.
import * as exact from "./exact-json.js";

/** @typedef {Record<string, any>} Schema */
/**
 * A value, and what it has to fit. `steps` bounds the work: what would come after that many is left to the mesh.
 * @typedef {{schema: any, root: any, value: any, path: string, depth: number, steps: {left: number}}} Place
 */

const MAX_DEPTH = 60;
const MAX_STEPS = 20_000;
const MAX_PROBLEMS = 5;
const MAX_CHOICES = 12;

/**
 * What is wrong, a sentence each.
 * @type {(schema: any, value: any, name: string) => string[]} `name` is how the value itself is called
 */
export const problemsOf = (schema, value, name) =>
  [...new Set(found({ schema, root: schema, value, path: name, depth: 0, steps: { left: MAX_STEPS } }))].slice(0, MAX_PROBLEMS);

/** @type {(place: Place) => string[]} */
function found(place) {
  const { schema, root, path, depth, steps } = place;
  steps.left -= 1;
  if (schema === false) return [`${path} must not be here.`];
  if (!exact.isObject(schema) || depth > MAX_DEPTH || steps.left < 0) return [];
  const { $ref: target, $id: id } = /** @type {Schema} */ (schema);
  if (id !== undefined && schema !== root) return []; // references in it mean something else
  if (target !== undefined) return found(deeper(place, { schema: resolved(target, root) }));
  return [...wrongType(place), ...wrongValue(place), ...inParts(place), ...inChoices(place)];
}

/** @type {(place: Place, change: Partial<Place>) => Place} */
const deeper = (place, change) => ({ ...place, depth: place.depth + 1, ...change });

/**
 * The part of the schema that a reference means; undefined if it is somewhere else.
 * @type {(ref: unknown, root: any) => any}
 */
function resolved(ref, root) {
  if (typeof ref !== "string" || !/^#(\/[^%]*)?$/.test(ref)) return undefined;
  return ref.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"))
    .reduce((schema, part) => (Object.hasOwn(Object(schema), part) ? schema[part] : undefined), root);
}

/** @type {(place: Place) => string[]} */
function wrongType({ schema, value, path }) {
  const wanted = [schema.type ?? []].flat();
  if (!wanted.length || wanted.some((type) => isA(type, value))) return [];
  return [`${path} has to be ${wanted.map(withArticle).join(" or ")}, and is ${withArticle(typeOf(value))}.`];
}

/** @param {any} value */
function typeOf(value) {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return exact.isObject(value) ? "object" : isNumber(value) ? "number" : typeof value;
}

/** @type {(type: string, value: any) => boolean} */
const isA = (type, value) => (type === "integer" ? isNumber(value) && Number.isInteger(exact.number(value)) : typeOf(value) === type);

/** @param {any} value */
const isNumber = (value) => typeof value === "number" || (typeof value === "object" && value !== null && !Array.isArray(value) && !exact.isObject(value));

/** @param {string} type */
const withArticle = (type) => (type === "null" ? type : `${/^[aio]/.test(type) ? "an" : "a"} ${type}`);

/** @type {(place: Place) => string[]} */
function wrongValue({ schema, value, path }) {
  /** @type {[boolean, string][]} */
  const wrong = [
    ["const" in schema && !isEqual(schema.const, value), `has to be ${told(schema.const)}.`],
    [Array.isArray(schema.enum) && !schema.enum.some((/** @type {any} */ one) => isEqual(one, value)), `has to be one of ${[schema.enum ?? []].flat().slice(0, MAX_CHOICES).map(told).join(", ")}.`],
    ...(isNumber(value) ? outOfRange(schema, exact.number(value)) : []),
    ...(typeof value === "string" ? wrongSize(schema, "Length", [...value].length, "character") : []),
    ...(Array.isArray(value) ? wrongSize(schema, "Items", value.length, "item") : []),
    ...(typeOf(value) === "object" ? wrongSize(schema, "Properties", Object.keys(value).length, "property") : []),
  ];
  return wrong.filter(([isWrong]) => isWrong).map(([, what]) => `${path} ${what}`);
}

/**
 * Numbers with more digits than those of JavaScript are rounded, so that none on the border is reported.
 * @type {(schema: Schema, number: number) => [boolean, string][]}
 */
const outOfRange = ({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }, number) => [
  [number < limit(minimum), `has to be at least ${told(minimum)}.`],
  [number > limit(maximum), `has to be at most ${told(maximum)}.`],
  [number < limit(exclusiveMinimum) || (number === exclusiveMinimum && Number.isSafeInteger(number)), `has to be more than ${told(exclusiveMinimum)}.`],
  [number > limit(exclusiveMaximum) || (number === exclusiveMaximum && Number.isSafeInteger(number)), `has to be less than ${told(exclusiveMaximum)}.`],
];

/** @param {any} value of a keyword; what is no number bounds nothing */
const limit = (value) => (isNumber(value) ? exact.number(value) : NaN);

/** @type {(schema: Schema, what: string, size: number, one: string) => [boolean, string][]} */
const wrongSize = (schema, what, size, one) => [
  [size < limit(schema[`min${what}`]), `has too few ${one}s: at least ${told(schema[`min${what}`])}.`],
  [size > limit(schema[`max${what}`]), `has too many ${one}s: at most ${told(schema[`max${what}`])}.`],
];

/** @type {(place: Place) => string[]} */
function inParts(place) {
  const { schema, value, path } = place;
  if (Array.isArray(value)) {
    const { items, prefixItems = [] } = schema;
    if (Array.isArray(items)) return [];
    return value.flatMap((one, index) => (index < prefixItems.length ? [] : found(deeper(place, { schema: items, value: one, path: `${path}[${index}]` }))));
  }
  if (typeOf(value) !== "object") return [];
  const { properties = {}, required = [], additionalProperties, patternProperties } = schema;
  const at = (/** @type {string} */ key) => `${path}.${exact.visible(key)}`;
  const missing = [required].flat().filter((key) => typeof key === "string" && !Object.hasOwn(value, key))
    .map((key) => `${at(key)} is missing.`);
  return [...missing, ...Object.entries(value).flatMap(([key, one]) => {
    if (Object.hasOwn(properties, key)) return found(deeper(place, { schema: properties[key], value: one, path: at(key) }));
    return patternProperties ? [] : found(deeper(place, { schema: additionalProperties, value: one, path: at(key) }));
  })];
}

/**
 * A choice is certainly wrong if each of its parts is.
 * @type {(place: Place) => string[]}
 */
function inChoices(place) {
  const { schema, value, path } = place;
  const inAll = [schema.allOf ?? []].flat().flatMap((part) => found(deeper(place, { schema: part })));
  const ofChoices = [schema.anyOf, schema.oneOf].filter(Array.isArray).flatMap((parts) => {
    const wrong = parts.map((part) => found(deeper(place, { schema: part })));
    if (wrong.some((problems) => !problems.length)) return [];
    const likely = wrong.filter((_, index) => [parts[index]?.type ?? []].flat().some((type) => isA(type, value)));
    return likely.length === 1 ? likely[0] : [`${path} fits none of the ${parts.length} things that it may be.`];
  });
  return [...inAll, ...ofChoices];
}

/** @type {(one: any, other: any) => boolean} */
function isEqual(one, other) {
  if (isNumber(one) && isNumber(other)) return exact.number(one) === exact.number(other);
  if (Array.isArray(one) && Array.isArray(other)) return one.length === other.length && one.every((each, index) => isEqual(each, other[index]));
  if (typeOf(one) !== "object" || typeOf(other) !== "object") return one === other;
  const keys = Object.keys(one);
  return keys.length === Object.keys(other).length && keys.every((key) => Object.hasOwn(other, key) && isEqual(one[key], other[key]));
}

/** @param {any} value */
const told = (value) => exact.visible(JSON.stringify(value) ?? "").slice(0, 80);
