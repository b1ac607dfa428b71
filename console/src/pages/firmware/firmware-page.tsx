import { Trans, useLingui } from '@lingui/react/macro';
import { Page } from '../../ui/page';
import { PageTabs } from '../../ui/page-tabs';
import { Assignments } from './assignments';
import { Campaigns } from './campaigns';
import { Packages } from './packages';

/** Images for devices, and which devices install them. */
export default function FirmwarePage() {
  const { t } = useLingui();
  return (
    <Page
      title={t`Firmware`}
      description={<Trans>Images with a version and a digest, and the devices that are to install them.</Trans>}
    >
      <PageTabs
        tabs={[
          { id: 'packages', label: <Trans>Packages</Trans>, content: <Packages /> },
          { id: 'assignments', label: <Trans>Assignments</Trans>, content: <Assignments /> },
          { id: 'campaigns', label: <Trans>Campaigns</Trans>, content: <Campaigns /> },
        ]}
      />
    </Page>
  );
}
