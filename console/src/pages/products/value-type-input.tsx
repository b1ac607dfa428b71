import { ActionIcon, Button, Card, NumberInput, Select, Stack, TextInput } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconX } from '@tabler/icons-react';
import { valueTypes, withType, type Item, type ValueType } from './thing-model';

interface ValueTypeInputProps {
  label: string;
  value: ValueType;
  onChange: (value: ValueType) => void;
}

const numbers = ['int', 'long', 'float', 'double'];

/** The type of a value, with what belongs to the type. */
export function ValueTypeInput({ label, value, onChange }: ValueTypeInputProps) {
  const { t } = useLingui();
  const set = (change: Partial<ValueType>) => onChange({ ...value, ...change });
  const number = (name: 'min' | 'max' | 'scale' | 'maxLength', text: string) => (
    <NumberInput
      label={text}
      className="grow"
      value={value[name] ?? ''}
      onChange={(next) => set({ [name]: next === '' ? undefined : Number(next) })}
    />
  );
  return (
    <Stack gap="xs">
      <Select
        label={label}
        allowDeselect={false}
        searchable
        data={valueTypes.includes(value.type) ? valueTypes : [value.type, ...valueTypes]}
        value={value.type}
        onChange={(type) => onChange(withType(type ?? 'string', value))}
      />
      {numbers.includes(value.type) && (
        <div className="row wrap">
          <TextInput
            label={t`Unit`}
            className="grow"
            value={value.unit ?? ''}
            onChange={(event) => set({ unit: event.currentTarget.value || undefined })}
          />
          {number('min', t`Minimum`)}
          {number('max', t`Maximum`)}
          {(value.type === 'float' || value.type === 'double') && number('scale', t`Decimals`)}
        </div>
      )}
      {(value.type === 'string' || value.type === 'password') && number('maxLength', t`Maximum characters`)}
      {value.type === 'date' && (
        <TextInput
          label={t`Format`}
          placeholder="yyyy-MM-dd HH:mm:ss"
          value={value.format ?? ''}
          onChange={(event) => set({ format: event.currentTarget.value || undefined })}
        />
      )}
      {value.type === 'boolean' && (
        <div className="row wrap">
          <TextInput
            label={t`Text of true`}
            className="grow"
            value={value.trueText ?? ''}
            onChange={(event) => set({ trueText: event.currentTarget.value || undefined })}
          />
          <TextInput
            label={t`Text of false`}
            className="grow"
            value={value.falseText ?? ''}
            onChange={(event) => set({ falseText: event.currentTarget.value || undefined })}
          />
        </div>
      )}
      {value.type === 'enum' && <Elements elements={value.elements ?? []} onChange={(elements) => set({ elements })} />}
      {value.type === 'array' && (
        <Card withBorder padding="sm">
          <ValueTypeInput
            label={t`Type of the elements`}
            value={value.elementType ?? { type: 'float' }}
            onChange={(elementType) => set({ elementType })}
          />
        </Card>
      )}
      {value.type === 'object' && (
        <FieldRows fields={value.properties ?? []} onChange={(properties) => set({ properties })} />
      )}
    </Stack>
  );
}

function replaced<T>(list: T[], index: number, value: T): T[] {
  return list.map((each, at) => (at === index ? value : each));
}

function Elements({
  elements,
  onChange,
}: {
  elements: { value: string; text: string }[];
  onChange: (elements: { value: string; text: string }[]) => void;
}) {
  const { t } = useLingui();
  return (
    <Stack gap={6} align="stretch">
      {elements.map((element, index) => (
        <div className="row" key={index}>
          <TextInput
            aria-label={t`Value`}
            placeholder={t`Value`}
            className="grow"
            value={element.value}
            onChange={(event) => onChange(replaced(elements, index, { ...element, value: event.currentTarget.value }))}
          />
          <TextInput
            aria-label={t`Text`}
            placeholder={t`Text`}
            className="grow"
            value={element.text}
            onChange={(event) => onChange(replaced(elements, index, { ...element, text: event.currentTarget.value }))}
          />
          <ActionIcon aria-label={t`Remove`} onClick={() => onChange(elements.filter((_, at) => at !== index))}>
            <IconX size={14} />
          </ActionIcon>
        </div>
      ))}
      <Button
        variant="subtle"
        size="compact-xs"
        style={{ alignSelf: 'flex-start' }}
        leftSection={<IconPlus size={12} />}
        onClick={() => onChange([...elements, { value: '', text: '' }])}
      >
        <Trans>Add a value</Trans>
      </Button>
    </Stack>
  );
}

/** Fields of an object, or inputs of a function. */
export function FieldRows({ fields, onChange }: { fields: Item[]; onChange: (fields: Item[]) => void }) {
  const { t } = useLingui();
  return (
    <Stack gap="xs">
      {fields.map((field, index) => (
        <Card withBorder padding="sm" key={index}>
          <Stack gap="xs">
            <div className="row">
              <TextInput
                aria-label={t`Id`}
                placeholder={t`Id`}
                className="grow"
                classNames={{ input: 'mono' }}
                value={field.id}
                onChange={(event) => onChange(replaced(fields, index, { ...field, id: event.currentTarget.value }))}
              />
              <TextInput
                aria-label={t`Name`}
                placeholder={t`Name`}
                className="grow"
                value={field.name ?? ''}
                onChange={(event) => onChange(replaced(fields, index, { ...field, name: event.currentTarget.value }))}
              />
              <ActionIcon aria-label={t`Remove`} onClick={() => onChange(fields.filter((_, at) => at !== index))}>
                <IconX size={14} />
              </ActionIcon>
            </div>
            <ValueTypeInput
              label={t`Type`}
              value={field.valueType ?? { type: 'string' }}
              onChange={(valueType) => onChange(replaced(fields, index, { ...field, valueType }))}
            />
          </Stack>
        </Card>
      ))}
      <Button
        variant="subtle"
        size="compact-xs"
        style={{ alignSelf: 'flex-start' }}
        leftSection={<IconPlus size={12} />}
        onClick={() => onChange([...fields, { id: '', name: '', valueType: { type: 'float' } }])}
      >
        <Trans>Add a field</Trans>
      </Button>
    </Stack>
  );
}
