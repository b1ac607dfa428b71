/** Fields of forms made from schemas, also nested ones, lists and unions; checked while the user types. */

import {
  ActionIcon,
  Autocomplete,
  Fieldset,
  MultiSelect,
  NumberInput,
  PasswordInput,
  Select,
  Stack,
  Switch,
  TagsInput,
  Text,
  Textarea,
  TextInput,
} from '@mantine/core';
import { useLingui } from '@lingui/react/macro';
import { IconTrash } from '@tabler/icons-react';
import type { ReactNode } from 'react';
import { namedChoices } from '../api/choice-names';
import { useDescriptions } from '../api/descriptions';
import { choicesOf, problemsOf, resolved, typesOf, type Schema, type SchemaScope } from '../api/json-schema';
import type { Fields } from '../api/objects';
import { choiceList, fieldLabel, isVariant, plain, variantName, variantStart } from '../api/schema-variants';
import { withCode } from './description';
import { AddEntry, FieldError, Help, JsonField, TextMap, TimeField, type InputProps } from './field-inputs';
import './schema-form.css';

/** An input of its own for a field that the schema describes only as text, such as the name of another object. */
export type Control = (props: InputProps) => ReactNode;

/** What a page knows about a field beyond its schema. */
export interface FieldOptions {
  label?: string;
  /** Instead of the description in the schema. */
  help?: ReactNode;
  /** How to enter the value, where the schema does not tell. */
  control?: ControlName;
  /** Values to choose from, or to suggest. */
  options?: (string | { value: string; label: string })[];
  /** Whether other values than the options can be entered. */
  isOpen?: boolean;
  placeholder?: string;
  /** What a field without a value means, where the schema does not tell. */
  initially?: unknown;
  /** Instead of the usual input. */
  render?: Control;
}

type ControlName =
  | 'switch'
  | 'number'
  | 'text'
  | 'mono'
  | 'textarea'
  | 'secret'
  | 'time'
  | 'select'
  | 'list'
  | 'pairs'
  | 'json'
  | 'union'
  | 'group'
  | 'objects';

/** What all fields of a form share. */
export interface FormContext {
  scope: SchemaScope;
  /** Texts by path. */
  problems: ReadonlyMap<string, string>;
  /** Whether untouched fields show their problems too. */
  showAll: boolean;
  isDisabled: boolean;
  /** By path. */
  controls: Record<string, Control>;
}

interface GeneratedFormProps {
  schema: Schema;
  /** Where references of the schema point to; default: it has none. */
  scope?: SchemaScope;
  value: Fields;
  onChange: (value: Fields) => void;
  /** Fields that the form does not show. */
  hidden?: readonly string[];
  /** Fields that come first, in this order. */
  first?: readonly string[];
  /** After an attempt to save. */
  showAll?: boolean;
  controls?: Record<string, Control>;
}

/** Text fields of these names have several lines. */
const multiLine = /^(sql|body|payload|document|line|text|message|query|select|condition|template|command)$/;
/** Lists of choices that are longer can be searched. */
const maxUnsearched = 8;

/** A form with all fields that a schema describes. */
export function GeneratedForm({
  schema,
  scope = { schemas: {}, root: schema },
  value,
  onChange,
  hidden = [],
  first = [],
  showAll = false,
  controls = {},
}: GeneratedFormProps) {
  const problems = new Map(formProblems(value, schema, scope).map((each) => [each.path, each.message]));
  const context = { scope, problems, showAll, controls, isDisabled: false };
  return <ObjectFields {...{ schema, value, onChange, hidden, first, context }} path="" />;
}

/** What is wrong with the values of a form, in which an empty text stands for a missing one. */
export function formProblems(value: Fields, schema: Schema, scope: SchemaScope = { schemas: {}, root: schema }) {
  return problemsOf(withoutEmpty(value), schema, scope);
}

function withoutEmpty(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutEmpty);
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value).filter(([, inner]) => inner !== undefined && inner !== '');
  return Object.fromEntries(entries.map(([name, inner]) => [name, withoutEmpty(inner)]));
}

interface ObjectFieldsProps {
  schema: Schema;
  value: Fields;
  onChange: (value: Fields) => void;
  path: string;
  hidden?: readonly string[];
  first?: readonly string[];
  context: FormContext;
}

/** The fields of an object: required ones first, groups of settings last. */
function ObjectFields({ schema, value, onChange, path, hidden = [], first = [], context }: ObjectFieldsProps) {
  const own = plain(schema, context.scope);
  const required = new Set(own.required ?? []);
  const properties = own.properties ?? {};
  const names = Object.keys(properties).filter(
    (name) => !hidden.includes(name) && properties[name]?.const === undefined,
  );
  const rank = (name: string) => {
    if (first.includes(name)) return first.indexOf(name) - first.length;
    if (required.has(name)) return 0;
    return plain(properties[name] ?? {}, context.scope).type === 'object' ? 2 : 1;
  };
  return (
    <Stack gap="sm">
      {[...names]
        .sort((a, b) => rank(a) - rank(b))
        .map((name) => (
          <SchemaField
            key={name}
            name={name}
            schema={properties[name] ?? {}}
            value={value[name]}
            onChange={(next) => {
              const { [name]: _, ...others } = value;
              onChange(next === undefined ? others : { ...others, [name]: next });
            }}
            path={path === '' ? name : `${path}.${name}`}
            isRequired={required.has(name)}
            context={context}
          />
        ))}
    </Stack>
  );
}

interface SchemaFieldProps {
  name: string;
  schema: Schema;
  value: unknown;
  onChange: (value: unknown) => void;
  path: string;
  isRequired: boolean;
  context: FormContext;
  options?: FieldOptions;
  /** Instead of the problem at the field's path. */
  error?: string;
}

/** One field, with the input that its schema or its page asks for. */
export function SchemaField(props: SchemaFieldProps) {
  const { name, schema, value, onChange, path, isRequired, context, options = {} } = props;
  const { t } = useLingui();
  const translate = useDescriptions();
  const { scope } = context;
  const own = plain(schema, scope);
  const label = options.label ?? fieldLabel(name);
  const description = options.help ?? (own.description && withCode(translate(own.description)));
  const problem = context.problems.get(path);
  const isEmpty = value === undefined || value === null || value === '';
  const error = props.error ?? (problem !== undefined && (context.showAll || !isEmpty) ? problem : undefined);
  const common = { label, description, error, required: isRequired, disabled: context.isDisabled };
  const control = options.render ?? context.controls[path];
  if (control) return control({ ...common, value, onChange });

  const initial = own.default ?? options.initially;
  const hint = options.placeholder ?? (initial == null ? undefined : shownDefault(initial));
  const empty = isRequired ? undefined : emptyValue(schema, scope);
  const text = typeof value === 'string' ? value : '';
  const changeText = (next: string) => onChange(next === '' ? (isRequired ? '' : empty) : next);
  const values = choicesOf(own, scope);
  const choices = options.options ?? (values && namedChoices(name, values));
  const inner = { ...props, schema: own, label, description, error, empty };
  switch (options.control ?? controlOf(own, scope, name)) {
    case 'switch':
      return (
        <Switch
          label={label}
          description={description}
          error={error}
          disabled={context.isDisabled}
          checked={Boolean(value ?? initial ?? false)}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
      );
    case 'number':
      return (
        <NumberInput
          {...common}
          value={typeof value === 'number' ? value : ''}
          placeholder={hint}
          allowDecimal={!typesOf(own).includes('integer')}
          onChange={(next) => onChange(next === '' || next === '-' ? empty : Number(next))}
        />
      );
    case 'list': {
      const list = value == null ? [] : Array.isArray(value) ? value.map(String) : [String(value)];
      const items = plain(itemOf(own, scope), scope);
      const isNumeric = typesOf(items).some((type) => type === 'integer' || type === 'number');
      const change = (next: string[]) =>
        onChange(next.length === 0 && !isRequired ? empty : isNumeric ? next.map(Number) : next);
      const known = choicesOf(items, scope);
      const data = options.options ?? (known && namedChoices(name, known));
      return data && !options.isOpen ? (
        <MultiSelect {...common} data={data} value={list} onChange={change} clearable searchable />
      ) : (
        <TagsInput
          {...common}
          data={data ?? []}
          value={list}
          placeholder={options.placeholder ?? t`Type, then press Enter`}
          splitChars={[]}
          clearable
          acceptValueOnBlur
          onChange={change}
        />
      );
    }
    case 'pairs':
      return <TextMap {...common} value={value} onChange={onChange} empty={isRequired ? {} : empty} />;
    case 'json': {
      const types = partsOf(own, scope).flatMap(typesOf);
      const isWordText = types.length === 0 || types.includes('string');
      return <JsonField {...common} value={value} onChange={onChange} empty={empty} isWordText={isWordText} />;
    }
    case 'time':
      return <TimeField {...common} value={value} onChange={onChange} empty={empty} />;
    case 'secret':
      return (
        <PasswordInput
          {...common}
          placeholder={hint}
          autoComplete="new-password"
          value={text}
          onChange={(event) => changeText(event.currentTarget.value)}
        />
      );
    case 'textarea': {
      const isProse = options.control === 'textarea';
      return (
        <Textarea
          {...common}
          classNames={isProse ? undefined : { input: 'mono' }}
          autosize
          minRows={2}
          maxRows={14}
          value={text}
          placeholder={hint}
          onChange={(event) => changeText(event.currentTarget.value)}
        />
      );
    }
    case 'union':
      return <Union {...inner} />;
    case 'objects':
      return <ObjectList {...inner} />;
    case 'group':
      return <SettingsGroup {...inner} />;
    default:
      if (choices && options.isOpen) {
        return (
          <Autocomplete
            {...common}
            placeholder={hint}
            data={choices}
            value={value == null ? '' : String(value)}
            onChange={changeText}
          />
        );
      }
      if (choices) {
        const isBoolean = typesOf(own).includes('boolean');
        const fallback = initial == null ? null : String(initial);
        const descriptions = new Map(
          choiceList(own)?.map((each) => [each.value, each.description && translate(each.description)]),
        );
        return (
          <Select
            {...common}
            data={choices}
            placeholder={options.placeholder ?? (isRequired || options.options ? undefined : t`default`)}
            searchable={choices.length > maxUnsearched}
            allowDeselect={!isRequired && fallback === null}
            clearable={!isRequired && fallback === null}
            value={value == null ? fallback : String(value)}
            onChange={(next) => onChange(next === null ? empty : isBoolean ? next === 'true' : next)}
            renderOption={({ option }) => (
              <div>
                {option.label}
                <Help text={descriptions.get(option.value)} />
              </div>
            )}
          />
        );
      }
      return (
        <TextInput
          {...common}
          classNames={options.control === 'mono' ? { input: 'mono' } : undefined}
          spellCheck={options.control === 'mono' ? false : undefined}
          placeholder={hint}
          value={text}
          onChange={(event) => changeText(event.currentTarget.value)}
        />
      );
  }
}

/** The alternatives of a schema and itself, without `null`. */
const partsOf = (own: Schema, scope: SchemaScope): Schema[] => [
  own,
  ...(own.anyOf ?? own.oneOf ?? []).map((part) => resolved(part, scope)),
];

const itemOf = (own: Schema, scope: SchemaScope): Schema =>
  partsOf(own, scope).find((part) => part.items !== undefined)?.items ?? {};

/** The value of an empty field: `null` where the schema knows it, otherwise the field is left out. */
function emptyValue(schema: Schema, scope: SchemaScope): null | undefined {
  return partsOf(resolved(schema, scope), scope).flatMap(typesOf).includes('null') ? null : undefined;
}

/** How a value is entered, as far as its schema and its name tell. */
function controlOf(own: Schema, scope: SchemaScope, name: string): ControlName {
  if (choicesOf(own, scope)) return 'select';
  const types = partsOf(own, scope).flatMap(typesOf);
  if (types.includes('array')) {
    const items = plain(itemOf(own, scope), scope);
    const isPlain = typesOf(items).some((type) => ['string', 'integer', 'number'].includes(type));
    return isPlain || choicesOf(items, scope) ? 'list' : items.properties || items.oneOf ? 'objects' : 'json';
  }
  if (own.oneOf) return 'union';
  if (types.includes('object')) {
    if (own.properties) return 'group';
    return typeof own.additionalProperties === 'object' ? 'pairs' : 'json';
  }
  // Such as a number, or a template that yields one.
  if (new Set(types.filter((type) => type !== 'null')).size > 1 && types.includes('string')) return 'json';
  if (types.includes('boolean')) return 'switch';
  if (types.includes('integer') || types.includes('number')) return 'number';
  if (types.length === 0) return 'json';
  if (own.writeOnly) return 'secret';
  return multiLine.test(name) ? 'textarea' : 'text';
}

function shownDefault(value: unknown): string {
  return typeof value === 'string' ? value : JSON.stringify(value);
}

type NestedProps = Omit<SchemaFieldProps, 'error'> & {
  label: string;
  description: ReactNode;
  error: string | undefined;
  empty: null | undefined;
};

/** Settings that exist only together; without a value the defaults apply. */
function SettingsGroup({
  schema,
  value,
  onChange,
  path,
  isRequired,
  context,
  label,
  description,
  error,
  empty,
}: NestedProps) {
  const isSet = typeof value === 'object' && value !== null;
  const fields = (
    <ObjectFields
      schema={schema}
      value={isSet ? (value as Fields) : {}}
      onChange={onChange}
      path={path}
      context={context}
    />
  );
  if (isRequired) return <Fieldset legend={label}>{fields}</Fieldset>;
  return (
    <div className="settings-group">
      <Switch
        label={label}
        description={description}
        error={isSet ? undefined : error}
        disabled={context.isDisabled}
        checked={isSet}
        onChange={(event) => onChange(event.currentTarget.checked ? {} : empty)}
      />
      {isSet && <div className="settings-group-fields">{fields}</div>}
    </div>
  );
}

/** One of several forms, chosen by its name. */
function Union({
  name,
  schema,
  value,
  onChange,
  path,
  isRequired,
  context,
  label,
  description,
  error,
  empty,
}: NestedProps) {
  const { t } = useLingui();
  const translate = useDescriptions();
  const variants = (schema.oneOf ?? [])
    .map((each) => resolved(each, context.scope))
    .filter((each) => typesOf(each).join() !== 'null');
  const current = variants.find((variant) => isVariant(variant, value));
  return (
    <div>
      <Select
        label={label}
        description={description}
        required={isRequired}
        disabled={context.isDisabled}
        error={current?.properties ? undefined : error}
        placeholder={t`default`}
        clearable={!isRequired}
        data={namedChoices(name, variants.map(variantName))}
        value={current ? variantName(current) : null}
        onChange={(next) => {
          const variant = variants.find((each) => variantName(each) === next);
          onChange(variant ? variantStart(variant) : empty);
        }}
      />
      {current?.properties && (
        <div className="settings-group-fields">
          {current.description && (
            <Text size="xs" c="dimmed" mb="xs">
              {translate(current.description)}
            </Text>
          )}
          <ObjectFields schema={current} value={value as Fields} onChange={onChange} path={path} context={context} />
        </div>
      )}
    </div>
  );
}

/** A list of objects. */
function ObjectList({ schema, value, onChange, path, context, label, description, error, empty }: NestedProps) {
  const { t } = useLingui();
  const entries = Array.isArray(value) ? value : [];
  const items = plain(itemOf(schema, context.scope), context.scope);
  const problem = context.problems.get(path);
  return (
    <Fieldset legend={label} disabled={context.isDisabled}>
      <Stack gap="sm">
        <Help text={description} />
        {entries.map((entry, index) => (
          <div key={index} className="list-entry">
            <div className="grow">
              <SchemaField
                name={items.properties ? '' : String(index + 1)}
                schema={items}
                value={entry}
                onChange={(next) => onChange(entries.map((each, at) => (at === index ? (next ?? {}) : each)))}
                path={`${path}.${index}`}
                isRequired
                context={context}
              />
            </div>
            <ActionIcon
              aria-label={t`Remove entry ${index + 1}`}
              onClick={() => {
                const rest = entries.filter((_, at) => at !== index);
                onChange(rest.length > 0 ? rest : empty);
              }}
            >
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        <FieldError text={problem && error} />
        {!context.isDisabled && <AddEntry onClick={() => onChange([...entries, {}])} />}
      </Stack>
    </Fieldset>
  );
}
