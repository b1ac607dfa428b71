import { Tabs } from '@mantine/core';
import { Trans, useLingui } from '@lingui/react/macro';
import { Page } from '../../ui/page';
import { useUrlState } from '../../ui/url-state';
import { Assignments } from './assignments';
import { Packages } from './packages';

/** Images for devices, and which devices install them. */
export default function FirmwarePage() {
  const { t } = useLingui();
  const [tab, setTab] = useUrlState('tab', 'packages');
  return (
    <Page
      title={t`Firmware`}
      description={<Trans>Images with a version and a digest, and the devices that are to install them.</Trans>}
    >
      <Tabs value={tab} onChange={(value) => setTab(value ?? 'packages')} keepMounted={false}>
        <Tabs.List>
          <Tabs.Tab value="packages">
            <Trans>Packages</Trans>
          </Tabs.Tab>
          <Tabs.Tab value="assignments">
            <Trans>Assignments</Trans>
          </Tabs.Tab>
        </Tabs.List>
        <Tabs.Panel value="packages" pt="md">
          <Packages />
        </Tabs.Panel>
        <Tabs.Panel value="assignments" pt="md">
          <Assignments />
        </Tabs.Panel>
      </Tabs>
    </Page>
  );
}
