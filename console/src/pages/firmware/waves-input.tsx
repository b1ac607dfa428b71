import { ActionIcon, Button, Fieldset, NumberInput, Select, Stack, Text } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { IconPlus, IconTrash } from '@tabler/icons-react';
import type { Schemas } from '../../api/client';
import type { Control } from '../../ui/schema-form';
import { ObjectSelect } from '../../ui/object-select';

type Wave = Schemas['CampaignWave'];

/** Waves in their order: each a share of the devices, or a group. */
export const WavesInput: Control = ({ value, onChange, description, error }) => {
  const { t } = useLingui();
  const waves = Array.isArray(value) ? (value as Wave[]) : [];
  const set = (index: number, wave: Wave) => onChange(waves.map((each, at) => (at === index ? wave : each)));
  return (
    <Fieldset legend={t`Waves`}>
      <Stack gap="sm">
        <Text size="xs" c="dimmed">
          {description}
        </Text>
        {waves.map((wave, index) => (
          <div key={index} className="row">
            <Select
              aria-label={t`Devices of wave ${index + 1}`}
              w={190}
              allowDeselect={false}
              data={[
                { value: 'percent', label: t`share of the devices` },
                { value: 'group', label: t`device group` },
              ]}
              value={wave.group === null ? 'percent' : 'group'}
              onChange={(kind) =>
                set(index, kind === 'group' ? { percent: null, group: '' } : { percent: 10, group: null })
              }
            />
            <div className="grow">
              {wave.group === null ? (
                <NumberInput
                  aria-label={t`Share of the devices in percent`}
                  min={1}
                  max={100}
                  suffix=" %"
                  value={wave.percent ?? ''}
                  onChange={(next) => set(index, { percent: next === '' ? null : Number(next), group: null })}
                />
              ) : (
                <ObjectSelect
                  kind="device-groups"
                  ariaLabel={t`Group`}
                  value={wave.group}
                  required
                  onChange={(next) => set(index, { percent: null, group: String(next ?? '') })}
                />
              )}
            </div>
            <ActionIcon
              aria-label={t`Remove wave ${index + 1}`}
              onClick={() => onChange(waves.filter((_, at) => at !== index))}
            >
              <IconTrash size={15} />
            </ActionIcon>
          </div>
        ))}
        {error && (
          <Text size="xs" c="var(--tg-critical)">
            {error}
          </Text>
        )}
        <div>
          <Button
            variant="default"
            leftSection={<IconPlus size={14} />}
            onClick={() => onChange([...waves, { percent: 50, group: null }])}
          >
            <Trans>Add a wave</Trans>
          </Button>
        </div>
      </Stack>
    </Fieldset>
  );
};
